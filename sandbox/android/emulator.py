"""The console of an Android emulator: going back to a snapshot. What runs on the emulator is not known here.

The console listens on loopback, on the port that is in the serial (emulator-5554), and wants the token that the emulator wrote into the
user's home folder. Source: the Android Studio guide, "Send emulator console commands".
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from warehouse.core.errors import DeviceLost, SandboxError, SandboxTimeout

TOKEN_FILE = ".emulator_console_auth_token"
_END = re.compile(rb"(?:^|\r?\n)(OK|KO:[^\r\n]*)\r?\n")


def console_port(serial: str) -> int:
    """The console's port by the serial of its device. Raises SandboxError for a device that is not an emulator."""
    match = re.fullmatch(r"emulator-(\d+)", serial)
    if match is None:
        raise SandboxError(f"Android device {serial!r} has no snapshots: only emulators (emulator-5554) do. Reset it by clearing its apps.")
    return int(match[1])


async def console(port: int, command: str, *, token: str | None = None, limit_s: float = 60.0) -> str:
    """What the console answers to one command, without the closing OK. `token` is else read from the user's home folder.

    Raises DeviceLost where nothing listens, SandboxTimeout, and SandboxError where the console refuses (`KO: …`)."""
    if token is None:
        path = Path.home() / TOKEN_FILE
        token = path.read_text(encoding="ascii").strip() if path.is_file() else ""
    try:
        return await asyncio.wait_for(_talk(port, command, token), limit_s)
    except TimeoutError as error:
        raise SandboxTimeout(f"The emulator's console on port {port} did not answer {command!r} within {limit_s:g} s.") from error
    except (OSError, EOFError) as error:
        raise DeviceLost(f"No emulator console answers on port {port} of loopback: {error}.") from error


async def _talk(port: int, command: str, token: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await _answer(reader, "the greeting")
        for line in ([f"auth {token}"] if token else []) + [command]:
            writer.write(line.encode() + b"\n")
            await writer.drain()
            said = await _answer(reader, line.partition(" ")[0] if line.startswith("auth ") else line)
        return said
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader, what: str) -> str:
    """Up to the line OK or KO."""
    text = b""
    while (end := _END.search(text)) is None:
        chunk = await reader.read(4096)
        if not chunk:
            raise EOFError(f"the console closed after {text[-200:]!r}")
        text += chunk
    if end[1] != b"OK":
        raise SandboxError(f"The emulator's console refused {what!r}: {end[1].decode(errors='replace')}.")
    return text[: end.start()].decode(errors="replace").strip()


async def load_snapshot(serial: str, name: str, *, limit_s: float = 60.0) -> None:
    """Put the whole emulator, its memory too, back to a snapshot. adb loses the device for a moment."""
    await console(console_port(serial), f"avd snapshot load {name}", limit_s=limit_s)
