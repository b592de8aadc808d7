"""Uploads of one web session: a file field that was clicked waits for the agent to type which files of the workspace it gets.

How a file comes out of the workspace safely is workspace_files.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sandbox import actions
from sandbox.actions import Action
from sandbox.browser.cdp.connection import Params
from sandbox.browser.window.workspace_files import Refused, stage_upload


class Fillable(Protocol):
    """A tab with a file field."""

    async def set_files(self, node_id: int, files: list[str]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    tab: Fillable
    node_id: int
    takes_several: bool


class Uploads:
    """At most one field waits; without a workspace nothing can be chosen."""

    def __init__(self, workspace: Path | None, staging: Path) -> None:
        self._workspace, self._staging = workspace, staging
        self._field: _Field | None = None

    @property
    def is_asked(self) -> bool:
        return self._field is not None

    def asked(self, tab: Fillable, event: Params) -> None:
        """A field asks for its files (Page.fileChooserOpened)."""
        if "backendNodeId" in event:
            self._field = _Field(tab=tab, node_id=int(event["backendNodeId"]), takes_several=event["mode"] == "selectMultiple")

    def tab_closed(self, tab: Fillable) -> None:
        if self._field is not None and self._field.tab is tab:
            self._field = None

    async def take(self, action: Action) -> dict[str, Any] | None:
        """What an action means to the field that waits, for Transition.info: text names its files, one a line; escape and every other
        action mean none. None: the action is for the page."""
        field, self._field = self._field, None
        if field is None:
            return None
        if not isinstance(action, actions.TypeText):
            is_escape = isinstance(action, actions.Hotkey) and action.keys[0].lower() in {"escape", "esc"}
            return {} if is_escape else None
        paths = [line.strip() for line in action.text.splitlines() if line.strip()]
        if not field.takes_several:
            paths = paths[:1]
        try:
            if self._workspace is None:
                raise Refused("this session has no workspace to upload from")
            staged = [str(stage_upload(self._workspace, path, self._staging)) for path in paths]
        except Refused as refusal:
            self._field = field
            return {"ignored": str(refusal)}
        await field.tab.set_files(field.node_id, staged)
        return {"uploaded": paths}
