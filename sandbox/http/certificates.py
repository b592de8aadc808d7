"""Which certificates our clients accept of a server at an https:// address, and their error for others."""

from __future__ import annotations

import os
import ssl

import httpx

from warehouse.core.errors import ConfigError

CERT_FILE, CERT_DIR = "SSL_CERT_FILE", "SSL_CERT_DIR"


def verification(url: str) -> ssl.SSLContext | bool:
    """httpx's `verify` for a client of `url`: certificates of the public authorities, or in their place those that SSL_CERT_FILE, or else
    SSL_CERT_DIR, names. Nothing is read for http://, since that takes time. For clients with `trust_env=False`, which read neither variable
    themselves. Raises ConfigError for a file that holds no certificate."""
    if not url.lower().startswith("https:"):
        return False
    variable = CERT_FILE if os.environ.get(CERT_FILE) else CERT_DIR
    try:
        return httpx.create_ssl_context()
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"{variable} is {os.environ.get(variable, '')!r}, from which no certificate can be read ({error}): set it to a "
            "file with the certificates of your authority in PEM, or unset it"
        ) from error


def rejection(error: BaseException) -> str:
    """What to say where a server's certificate was not accepted; empty where a request failed for another reason."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ssl.SSLCertVerificationError):
        found = found.__cause__ or found.__context__
    if found is None:
        return ""
    return f"its certificate is not accepted ({found.verify_message}): {CERT_FILE} has to name a file with the certificate of its authority"
