"""UI-TARS 1.0: boxes in `start_box`, relative to 1000 units each way. The envelope is thought_action.py's."""

from __future__ import annotations

from agent.grammars.calls import Scale
from agent.grammars.thought_action import ThoughtActionGrammar
from sandbox.session import Observation

UNITS = 1000


class UiTars1Grammar(ThoughtActionGrammar):
    name = "uitars1"

    def scale(self, observation: Observation) -> Scale:
        return UNITS, UNITS

    def write_point(self, x: int, y: int) -> str:
        return f"<|box_start|>({x},{y})<|box_end|>"

    def parameter_name(self, name: str) -> str:
        return {"point": "start_box", "start_point": "start_box", "end_point": "end_box"}[name]


GRAMMAR = UiTars1Grammar()
