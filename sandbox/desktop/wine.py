"""Windows programs: a Wine prefix made once for this machine, and how each desktop gets one of its own from it.

Making a prefix takes a minute and half a gigabyte, so a desktop's own prefix is links to the template's files, but for the registry and
the user's folders, which are copies. The template is bound read-only: a program cannot change what another desktop will see.
"""

from __future__ import annotations

from pathlib import Path

TEMPLATE = "/opt/wine-template"


def make_template() -> Path:
    raise NotImplementedError


def furnish_command() -> list[str]:
    raise NotImplementedError
