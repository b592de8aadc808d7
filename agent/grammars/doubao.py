"""The Doubao 1.5 prompts of UI-TARS: `<point>x y</point>`, relative to 1000 units each way. The envelope is thought_action.py's."""

from __future__ import annotations

from agent.grammars.calls import Scale
from agent.grammars.thought_action import ThoughtActionGrammar
from agent.grammars.uitars1 import UNITS
from sandbox.session import Observation


class DoubaoGrammar(ThoughtActionGrammar):
    name = "doubao"

    def scale(self, observation: Observation) -> Scale:
        return UNITS, UNITS

    def write_point(self, x: int, y: int) -> str:
        return f"<point>{x} {y}</point>"

    def parameter_name(self, name: str) -> str:
        return name


GRAMMAR = DoubaoGrammar()
