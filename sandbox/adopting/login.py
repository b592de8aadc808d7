"""Logging in once, before the crawl: the form with a password is filled in and sent; its cookies are kept, the password is not."""

from __future__ import annotations

import os

from sandbox.adopting.records import Folder, Site
from sandbox.adopting.window import SiteBrowser
from warehouse.core.errors import SandboxError

LIMIT_MS = 15_000
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
        if why_not := await window.go(url, LIMIT_MS):
            raise SandboxError(f"The log-in page {url} {why_not}: name another with --login-path.")
        await window.log_in(_SEND, [user, password], url)
        state = await window.cookies()
    finally:
        await browser.close()
    folder.root.mkdir(parents=True, exist_ok=True)
    aside = folder.path(f"login-{os.getpid()}.new")
    aside.unlink(missing_ok=True)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(state)
    aside.replace(folder.login)
