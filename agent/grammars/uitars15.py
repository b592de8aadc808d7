"""UI-TARS 1.5 (Qwen2.5-VL): written as 1.0, but in pixels of the picture after the image processor's resize."""

from __future__ import annotations

from agent.grammars.base import QWEN_MAX_AREA_PX, BadText, smart_resize
from agent.grammars.calls import Scale
from agent.grammars.uitars1 import UiTars1Grammar
from sandbox.session import Observation


class UiTars15Grammar(UiTars1Grammar):
    """`max_area_px` is the largest picture that the model's image processor lets through, in pixels."""

    name = "uitars15"

    def __init__(self, max_area_px: int = QWEN_MAX_AREA_PX) -> None:
        self._max_area_px = max_area_px

    def scale(self, observation: Observation) -> Scale:
        try:
            return smart_resize(observation.width_px, observation.height_px, max_area_px=self._max_area_px)
        except ValueError as error:
            raise BadText(str(error)) from None


GRAMMAR = UiTars15Grammar()
