"""The simulated device's process: serves commands.py to the programs in the device, the console of an emulator on loopback, and a door on
loopback to the adb server, which listens on a Unix socket in a network namespace without a way out.

    python -m tests.sandbox.android_device.device FOLDER

FOLDER/commands is the programs' socket (the arguments between zero bytes; answered by exit code, length of stdout, stdout and stderr),
FOLDER/server the adb server's; the ports are written to FOLDER/ports.json.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.sandbox.android_device.commands import Commands


async def serve(folder: Path) -> None:
    commands = Commands()

    async def program(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        code, out, error = commands.run((await reader.read()).decode(errors="replace").split("\0"))
        writer.write(f"{code} {len(out)}\n".encode() + out + error.encode())
        writer.close()

    async def console(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"Android Console: Authentication required\r\nOK\r\n")
        is_allowed = False
        while line := await reader.readline():
            answer = commands.console(line.decode().strip(), is_allowed)
            is_allowed = is_allowed or answer == "OK"
            writer.write(answer.encode() + b"\r\n")
        writer.close()

    async def door(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_unix_connection(str(folder / "server"))
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))

    console_server = await asyncio.start_server(console, "127.0.0.1", 0)
    door_server = await asyncio.start_server(door, "127.0.0.1", 0)
    programs = await asyncio.start_unix_server(program, str(folder / "commands"))
    os.chmod(folder / "commands", 0o777)
    ports = {"console": console_server.sockets[0].getsockname()[1], "adb": door_server.sockets[0].getsockname()[1]}
    aside = folder / "ports.aside"
    aside.write_text(json.dumps(ports))
    aside.rename(folder / "ports.json")
    async with console_server, door_server, programs:
        await programs.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
