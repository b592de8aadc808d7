"""A site in memory: pages of links and fields that lead to one another, beside a shell where a lesson needs one. What lessons about looking
things up (assets/seed_data/browsing_lessons.py) are acted out on; a single form is practice_page.py's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from assets.seed_data.practice_page import Move, PracticePage, Widget
from sandbox.actions import Action, Finished, Scroll, ToolCall
from sandbox.session import Observation


@dataclass(frozen=True, slots=True)
class SiteMove:
    """One step: act on a widget (`widget`, verb and text as of a Move), or an action that needs none. `leads_to` is the page that is shown
    after it, where it is another one; `output` what the shell prints."""

    verb: str = ""
    widget: Widget | None = None
    text: str = ""
    does: Action | None = None
    leads_to: Sequence[Widget] | None = None
    output: str = ""


class PracticeSite:
    """The page that is open, and what the shell printed last."""

    def __init__(self, widgets: Sequence[Widget]) -> None:
        self._page = PracticePage(list(widgets))
        self._output = ""

    def observe(self, instruction: str) -> Observation:
        return replace(self._page.observe(instruction), output=self._output)

    def action(self, move: SiteMove) -> Action:
        if move.does is not None:
            return move.does
        return self._page.action(_on_page(move))

    def carry_out(self, move: SiteMove) -> None:
        if move.does is None:
            self._page.carry_out(_on_page(move))
        if move.leads_to is not None:
            self._page = PracticePage(list(move.leads_to))
        self._output = move.output or self._output


def click(widget: Widget, leads_to: Sequence[Widget] | None = None) -> SiteMove:
    return SiteMove("click", widget, leads_to=leads_to)


def fill(field: Widget, text: str, verb: str = "click") -> list[SiteMove]:
    return [SiteMove(verb, field), SiteMove("type", field, text)]


def scroll_down(leads_to: Sequence[Widget]) -> SiteMove:
    return SiteMove(does=Scroll(direction="down"), leads_to=leads_to)


def run(command: str, output: str = "") -> SiteMove:
    return SiteMove(does=ToolCall(name="execute_bash", arguments={"command": command}), output=f"{output}[exit code 0]\n")


def answer(text: str = "") -> SiteMove:
    """The end, with an answer or without."""
    return SiteMove(does=Finished(answer=text))


def _on_page(move: SiteMove) -> Move:
    if move.widget is None:
        raise ValueError("a move without an action of its own needs a widget")
    return Move(move.verb, move.widget, move.text)
