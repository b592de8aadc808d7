"""The server of the stateful Python tool. It runs inside a jail, under the system's Python and its standard library alone, and executes
there what the agent wrote; the host passes this file as text. The host's side is python_tool.py.

A request on descriptor 250 is the length of the code in bytes, a newline, the code; the answer on 251, one line, comes when it has run.
What the code prints goes to standard output and error.
"""

from __future__ import annotations

import ast
import code
import linecache
import os
import signal
import sys
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper

REQUESTS, ANSWERS = 250, 251


class Cells(code.InteractiveInterpreter):
    """Runs one piece of code after another in one namespace; an expression at the end is printed."""

    def __init__(self) -> None:
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        super().__init__(module.__dict__)
        self.number = 0
        self.outcome = "ok"

    def run(self, source: str) -> str:
        """ok, error or interrupted."""
        self.number += 1
        self.outcome = "ok"
        name = f"<cell {self.number}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        try:
            tree = ast.parse(source, name)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            self.runcode(compile(tree, name, "exec"))  # nosemgrep: evaluated-text # in a jail: it is the agent's Python
            if last is not None and self.outcome == "ok":
                self.runcode(compile(ast.Interactive([last]), name, "single"))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self.outcome = "error"
            traceback.print_exc(limit=0)
        return self.outcome

    def runcode(self, compiled: types.CodeType) -> None:
        try:
            super().runcode(compiled)
        except SystemExit as error:
            self.outcome = "error"
            print(f"SystemExit: {error} (this session goes on)", file=sys.stderr)

    def showtraceback(self) -> None:
        """As Python would print it, without our own frames."""
        kind, error, trace = sys.exc_info()
        self.outcome = "interrupted" if kind is KeyboardInterrupt else "error"
        while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell"):
            trace = trace.tb_next
        traceback.print_exception(kind, error, trace)


def read_exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = os.read(REQUESTS, size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def read_request() -> str:
    digits = b""
    while not digits.endswith(b"\n"):
        digits += read_exactly(1)
    return read_exactly(int(digits)).decode()


def quietly(flush: Callable[[], None]) -> None:
    with suppress(OSError, ValueError):  # the code closed or replaced it
        flush()


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="replace")
    for fd in (REQUESTS, ANSWERS):
        os.set_inheritable(fd, False)
    sys.argv, sys.path[:] = [""], ["", *(place for place in sys.path if place)]
    cells = Cells()
    while True:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            source = read_request()
        except EOFError:
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            outcome = cells.run(source)
        except KeyboardInterrupt:  # it came just after the code had ended
            outcome = "interrupted"
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        quietly(sys.stdout.flush)
        quietly(sys.stderr.flush)
        os.write(ANSWERS, outcome.encode() + b"\n")


if __name__ == "__main__":
    main()
