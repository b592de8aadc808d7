"""UI-TARS 1.5 (Qwen2.5-VL): written as 1.0, but in pixels of the picture after the image processor's resize."""

from __future__ import annotations

from agent.grammars.base import BadText, smart_resize
from agent.grammars.calls import Scale
from agent.grammars.uitars1 import UiTars1Grammar
from sandbox.session import Observation


class UiTars15Grammar(UiTars1Grammar):
    name = "uitars15"

    def scale(self, observation: Observation) -> Scale:
        try:
            return smart_resize(observation.width_px, observation.height_px)
        except ValueError as error:
            raise BadText(str(error)) from None
