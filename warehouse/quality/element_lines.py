"""Element lines, `checked "Ok" <button> [2]`, as they stand in stored screens. How they are written is agent/grammars/elements.py's."""

from __future__ import annotations

import re

_NUMBERED = re.compile(r"\[(\d{1,4})\]")
_QUOTED = re.compile(r'"[^"]*"')


def elements_named(response: str, observation: str) -> list[str]:
    """The lines of a screen whose numbers stand in the action of an answer; none where it names points."""
    _, _, written = _QUOTED.sub('""', response).rpartition("Action")
    numbers = _NUMBERED.findall(written)
    lines = {}
    for line in observation.split("\n") if numbers else ():
        if found := _NUMBERED.search(line.rsplit(">", 1)[-1]):
            lines[found.group(1)] = line
    return [lines[number] for number in numbers if number in lines]
