"""Comparisons of metrics.py, carried out where they can harm nobody: what an agent wrote, and patterns of a stranger, are read by a program
in a jail of its own with little time and memory. Those that take time in proportion to what they read run here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sandbox.tasks.imported.metrics import METRICS, Result
from sandbox.terminal.apart import Reading, Unreadable
from sandbox.terminal.bubblewrap import JailLimits

LIMITS = JailLimits(processes=4, memory_mib=512, cpus=1.0, cpu_s=5, workspace_mib=1, scratch_mib=1, open_files=32)
LINEAR = frozenset(
    (
        "exact_match",
        "match_in_list",
        "literal_match",
        "check_include_exclude",
        "file_contains",
        "compare_text_file",
        "diff_text_file",
        "compare_config",
        "compare_answer",
        "check_file_exists",
        "sheet_print",
        "compare_result_files",
        "compare_image_list",
    )
)
MODULES = ("workbook", "workbook_objects", "workbook_settings", "workbook_formulas", "workbook_styles", "spreadsheets", "metrics")
"""What the program consists of, each after those that it imports."""
_START = """
import sys, types
parts = PACKAGE.split(".")
for length in range(1, len(parts) + 1):
    name = ".".join(parts[:length])
    sys.modules[name] = types.ModuleType(name)
for name, source in SOURCES.items():
    module = sys.modules[f"{PACKAGE}.{name}"] = types.ModuleType(f"{PACKAGE}.{name}")
    exec(source, module.__dict__)
sys.exit(module.main())
"""


async def compared(function: str, value: Result, expected: Any, options: Mapping[str, Any]) -> str | None:
    """Why a comparison does not pass; None where it does. One that needs more than LIMITS does not pass."""
    if function in LINEAR:
        return METRICS[function](value, expected, options)
    parts = [_part(value), _part(expected)]
    head = json.dumps({"function": function, "options": dict(options), "parts": [(kind, len(data)) for kind, data in parts]})
    content = b"".join([head.encode(), b"\n", *(data for _, data in parts)])
    try:
        reason = json.loads(await Reading(program=_program(), limits=LIMITS).of(content))
    except (Unreadable, ValueError) as error:
        return f"cannot be compared: {error}"
    return None if reason is None else str(reason)


def _part(value: Any) -> tuple[str, bytes]:
    return ("bytes", value) if isinstance(value, bytes) else ("json", json.dumps(value).encode())


@cache
def _program() -> str:
    sources = {name: Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8") for name in MODULES}
    return f"PACKAGE, SOURCES = {__package__!r}, {sources!r}\n{_START}"
