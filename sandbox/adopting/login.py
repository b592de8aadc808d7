"""Logging in before the crawl: the form with a password is filled in and sent, or, where the page asks by HTTP authentication, the request
answers that. Cookies are kept, the password is not. Where the application has forgotten the session, such as after a reset of the database
that holds it, the same is done again."""

from __future__ import annotations

import json
import os

from sandbox.adopting.records import PASSWORD, Folder, Site
from sandbox.adopting.site_browser import SiteBrowser
from warehouse.core.errors import ConfigError, SandboxError

LIMIT_MS = 60_000
UNAUTHORIZED = "answers with status 401"
_SEND = """([user, password]) => {
  const secret = [...document.querySelectorAll("input[type=password]")].find((each) => each.checkVisibility());
  if (!secret) return "there is no field for a password";
  const fields = [...(secret.form || document).querySelectorAll("input")];
  const name = fields.slice(0, fields.indexOf(secret)).reverse().find(
    (each) => ["text", "email", "tel", ""].includes(each.type) && each.checkVisibility());
  const set = (field, value) => {
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(field, value);
    for (const kind of ["input", "change"]) field.dispatchEvent(new Event(kind, {bubbles: true}));
  };
  if (name) set(name, user);
  set(secret, password);
  secret.focus();
  return "";
}"""


async def log_in(folder: Folder, site: Site, path: str, user: str, password: str) -> None:
    """Leaves login.json, readable by its owner alone. Raises SandboxError where the page takes no password or asks for it again."""
    browser = SiteBrowser(site.model_copy(update={"allow_writes": True}))  # a log-in is sent by POST
    try:
        window = await browser.open()
        url = site.origin + path
        why_not = await window.go(url, LIMIT_MS)
        if why_not == UNAUTHORIZED:
            await window.end()
            browser.credentials = {"username": user, "password": password, "origin": site.origin}
            window = await browser.open()
            if why_not := await window.go(url, LIMIT_MS):
                raise SandboxError(f"Logging in at {url} did not work: it {why_not}. Check --user and its password.")
            state = await window.cookies()
            if not json.loads(state)["cookies"]:
                raise SandboxError(
                    f"{url} asks for the password by HTTP authentication and sets no cookie, so every request would need the password, "
                    "which is not stored. Log in by a page with a form, or run the application without a password on this machine."
                )
        else:
            if why_not:
                raise SandboxError(f"The log-in page {url} {why_not}: name another with --login-path.")
            await window.log_in(_SEND, [user, password], url)
            state = await window.cookies()
    finally:
        await browser.close()
    _keep(folder, state)


async def log_in_again(folder: Folder, site: Site, browser: SiteBrowser) -> None:
    """As log_in, in a browser that runs, with the password of the environment. Raises SandboxError, and ConfigError
    where that is not set."""
    url = f"{site.origin}{site.login_path}"
    if site.login_path is None or not (password := os.environ.get(PASSWORD)):
        raise ConfigError(
            f"The application at {site.origin} no longer knows the log-in of {folder.login}. Set {PASSWORD}, or delete that file and run "
            "`flywheel adopt` with --login-path and --user again."
        )
    window = await browser.open()
    try:
        await window.empty({"cookies": [], "origins": []})
        window.is_logging_in = True
        if why_not := await window.go(url, LIMIT_MS):
            if why_not == UNAUTHORIZED:
                return await log_in(folder, site, site.login_path, site.user, password)
            raise SandboxError(f"The log-in page {url} {why_not}. Is the application running there?")
        await window.log_in(_SEND, [site.user, password], url)
        _keep(folder, await window.cookies())
    finally:
        await window.close()


def _keep(folder: Folder, state: str) -> None:
    folder.root.mkdir(parents=True, exist_ok=True)
    aside = folder.path(f"login-{os.getpid()}.new")
    aside.unlink(missing_ok=True)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(state)
    aside.replace(folder.login)
