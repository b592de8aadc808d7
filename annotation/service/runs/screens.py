"""Screens between the environment, the database and the page: an observation as a step keeps it, and as the page draws it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.grammars.elements import render_observation
from annotation.storage.schema import RunStep
from annotation.wire.runs import Box, ScreenView
from sandbox.session import Element, Observation

MAX_BOXES = 400
LONGEST_OUTPUT = 20_000


def screen_json(observation: Observation) -> dict[str, Any]:
    """All of an observation but its picture, address and instruction, which have columns of their own."""
    return {
        "width_px": observation.width_px,
        "height_px": observation.height_px,
        "time_ms": observation.time_ms,
        "elements": [
            {
                "role": each.role,
                "text": each.text,
                "states": list(each.states),
                "x_px": each.x_px,
                "y_px": each.y_px,
                "width_px": each.width_px,
                "height_px": each.height_px,
            }
            for each in observation.elements
        ],
        "output": observation.output,
    }


def observation_of(step: RunStep, instruction: str | None) -> Observation:
    """What a stored step saw, without its picture."""
    screen: Mapping[str, Any] = step.screen
    return Observation(
        instruction=instruction or "",
        elements=tuple(Element(**{**element, "states": tuple(element["states"])}) for element in screen["elements"]),
        screenshot=None,
        width_px=int(screen["width_px"]),
        height_px=int(screen["height_px"]),
        time_ms=float(screen["time_ms"]),
        url=step.url or "",
        output=str(screen["output"]),
    )


def screen_view(observation: Observation, screenshot_id: str | None) -> ScreenView:
    return ScreenView(
        screenshot_id=screenshot_id,
        width_px=observation.width_px,
        height_px=observation.height_px,
        url=observation.url or None,
        elements=tuple(_box(element, index) for index, element in enumerate(observation.elements[:MAX_BOXES], start=1)),
        output=observation.output[-LONGEST_OUTPUT:] or None,
    )


def _box(element: Element, index: int) -> Box:
    """Sessions say where a click lands, which is the middle unless something covers that."""
    return Box(
        index=index,
        role=element.role,
        name=element.text,
        x=element.x_px - element.width_px // 2,
        y=element.y_px - element.height_px // 2,
        width=element.width_px,
        height=element.height_px,
    )


def difference(stored_text: str, stored_screenshot_id: str | None, instruction: str, now: Observation) -> str | None:
    """How a screen that came back differs from what was stored of it: "text", "pixels", or not at all. Instruction, elements and output
    decide: a cursor that blinks makes no other screen."""
    if stored_text != render_observation(now) or instruction != now.instruction:
        return "text"
    if stored_screenshot_id is not None and now.screenshot is not None and stored_screenshot_id != now.screenshot_id:
        return "pixels"
    return None
