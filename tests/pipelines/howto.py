"""Runs a page of docs/howto as a reader would: the files that it shows are written and its commands run, in an empty folder, and what the
page says that they print has to be printed.

What a block is, its first line says: `sh` is commands of one terminal, from the page's first to its last; `sh server` is a command that
keeps running, in a terminal of its own; `text` is what the commands above it print (… stands for anything); any other language is a file,
whose name is the last one before it, as `name.ext`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.sandbox.own_source import ROOT

HOWTO = ROOT / "docs" / "howto"
START_S = 300
"""How long a server may take until it prints its address, on a busy machine."""
_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w+)(?P<more>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)
_FILE = re.compile(r"`([\w-]+\.\w+)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    kind: str
    """commands, server, prints or file."""
    text: str
    name: str = ""
    """Of a file."""


def pages() -> list[str]:
    return sorted(path.stem for path in HOWTO.glob("*.md"))


def steps_of(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"^(\d+)\. ", text, re.M)]


def blocks_of(text: str) -> list[Block]:
    found = []
    for match in _BLOCK.finditer(text):
        body = textwrap.dedent(match["text"])
        if match["language"] == "sh":
            found.append(Block(kind="server" if match["more"].strip() == "server" else "commands", text=body))
        elif match["language"] == "text":
            found.append(Block(kind="prints", text=body))
        else:
            found.append(Block(kind="file", text=body, name=_FILE.findall(text[: match.start()])[-1]))
    return found


def run_page(page: str, folder: Path, *, timeout_s: float = 900, variables: dict[str, str] | None = None) -> str:
    """Run a page's blocks in `folder`, in which a home `.flywheel` may lie already; returns what was printed. Fails with it where a command
    does, or where it does not print what the page shows."""
    blocks = blocks_of((HOWTO / f"{page}.md").read_text(encoding="utf-8"))
    programs = folder.parent / f"{folder.name}-programs"
    _write_programs(programs)
    script = programs / "page.sh"
    script.write_text(_script(blocks, folder, programs), encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLYWHEEL_", "DAGSTER_", "PREFECT_"))}
    ours = {name: os.environ[name] for name in ("FLYWHEEL_CHROMIUM", "FLYWHEEL_BROWSER_USER") if name in os.environ}
    environment = {
        **inherited,
        **ours,
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "160",
        **(variables or {}),
    }
    process = subprocess.Popen(
        [*own_network(), "bash", str(script)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _kill(process)
        output = f"{process.communicate()[0]}\nnot done after {timeout_s} s"
    finally:
        _kill(process)
    assert process.returncode == 0, f"{page}.md:\n{output[-6000:]}"
    _check_printed(blocks, output)
    return output


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _write_programs(folder: Path) -> None:
    """`flywheel` and `python` of this checkout, whatever else the environment has under these names."""
    folder.mkdir()
    for name, command in (("flywheel", f"{sys.executable} -m pipelines.cli"), ("python", sys.executable)):
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)


PORT = re.compile(r"http://(?:localhost|127\.0\.0\.1):\d+")


def needs_own_network(page: str) -> bool:
    """Whether a page names ports that others on this machine may use, and no network of its own can be had."""
    return bool(PORT.search((HOWTO / f"{page}.md").read_text(encoding="utf-8"))) and not own_network()


def own_network() -> list[str]:
    """Root gives each page a loopback of its own, so that the ports that it names are free."""
    up = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    can = os.geteuid() == 0 and shutil.which("unshare") and subprocess.run([*up, "true"], capture_output=True, timeout=60).returncode == 0
    return up if can else []


def _script(blocks: list[Block], folder: Path, programs: Path) -> str:
    """One shell for all commands of the page: what a step exports the next one has."""
    lines = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true; wait || true' EXIT"]
    for number, block in enumerate(blocks):
        if block.kind == "file":
            (programs / f"{number}").write_text(block.text, encoding="utf-8")
            lines.append(f"cp {shlex.quote(str(programs / str(number)))} {shlex.quote(block.name)}")
        elif block.kind == "commands":
            lines += [f"printf '\\n@@{number}@@\\n'", block.text.rstrip()]
        elif block.kind == "server":
            log = shlex.quote(str(programs / f"{number}.log"))
            lines += [
                f"printf '\\n@@{number}@@\\n'",
                f"( {block.text.strip()} ) >{log} 2>&1 &",
                f"for _ in $(seq {START_S * 2}); do",
                f"grep -q 'http://' {log} && break; kill -0 $! || {{ cat {log}; exit 1; }}; sleep .5; done",
                f"sleep .5; cat {log}",
            ]
    return "\n".join(lines)


def _check_printed(blocks: list[Block], output: str) -> None:
    parts = dict(re.findall(r"^@@(\d+)@@\n(.*?)(?=^@@\d+@@\n|\Z)", output, re.M | re.S))
    last = ""
    for number, block in enumerate(blocks):
        if block.kind in ("commands", "server"):
            last = " ".join(parts[str(number)].split())
        elif block.kind == "prints":
            for line in filter(None, (" ".join(line.split()) for line in block.text.splitlines())):
                pattern = ".*?".join(re.escape(piece.strip()) for piece in line.split("…"))
                found = re.search(pattern, last)
                assert found, f"the page says that this is printed:\n{line}\nand it is not:\n{parts.get(str(number - 1), '')}"
                last = last[found.end() :]
