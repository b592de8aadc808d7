"""A certificate authority of a test's own, and a proxy on loopback that ends TLS before a server."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sandbox.loop_thread import LoopThread

DAY = datetime.timedelta(days=1)


@dataclass
class Authority:
    """`file`: its own certificate, which SSL_CERT_FILE names. `server`: certificate and key of 127.0.0.1, signed by it."""

    file: Path
    server: Path


def make_authority(folder: Path) -> Authority:
    made = Authority(file=folder / "authority.pem", server=folder / "server.pem")
    key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name, server_name = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in ("an authority", "a server"))
    authority = _certificate(name, name, key, is_authority=True).sign(key, hashes.SHA256())
    signed = _certificate(server_name, name, server_key, is_authority=False).sign(key, hashes.SHA256())
    made.file.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    held = server_key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    made.server.write_bytes(held + signed.public_bytes(serialization.Encoding.PEM))
    return made


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    usage = x509.KeyUsage(True, False, False, False, False, is_authority, is_authority, False, False)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - DAY).not_valid_after(now + DAY)
    builder = builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True).add_extension(usage, True)
    return builder if is_authority else builder.add_extension(names, critical=False)


@contextmanager
def tls_before(url: str, server: Path) -> Iterator[str]:
    """The https:// address of a proxy before `url`, for as long as the block lasts. `server`: its certificate and key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server)
    target = urlsplit(url)
    loop = LoopThread("tls-proxy")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(target.hostname, target.port)
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))

    async def start() -> asyncio.Server:
        return await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)

    async def stop(proxy: asyncio.Server) -> None:
        proxy.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    proxy = loop.run(start())
    try:
        yield f"https://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    finally:
        loop.run(stop(proxy))
        loop.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while block := await reader.read(1 << 16):
            writer.write(block)
            await writer.drain()
    writer.close()
