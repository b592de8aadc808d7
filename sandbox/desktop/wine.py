"""Windows programs: a Wine prefix made once for this machine, and how each desktop gets one of its own from it.

Making a prefix takes a minute and half a gigabyte, so a desktop's own prefix is links to the template's files, but for the registry and
the user's folders, which are copies. The template is bound read-only: a program cannot change what another desktop will see.
"""

from __future__ import annotations

from pathlib import Path

from sandbox.browser.scratch import scratch_root

TEMPLATE_ROOT = "/opt/wine"


def template_root() -> Path:
    """The folder of templates, bound into every box whether there is a template yet or not."""
    folder = scratch_root() / "wine-1"
    folder.mkdir(mode=0o755, exist_ok=True)
    return folder


def make_template() -> Path:
    raise NotImplementedError


def furnish_command() -> list[str]:
    raise NotImplementedError
