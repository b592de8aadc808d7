"""What an action at a point hits, among the elements that an observation shows."""

from __future__ import annotations

from sandbox.actions import Action, Click, SelectOption
from sandbox.session import Element, Observation


def on_element(action: Action | None, observation: Observation) -> Action | None:
    """The same at the click point of the element that it hits, so that a policy can name that; unchanged where it hits none."""
    if not isinstance(action, Click | SelectOption):
        return action
    hits = [each for each in observation.elements if each.role != "text" and _hits(action.x, action.y, each)]
    if not hits:
        return action
    element = min(hits, key=lambda each: each.width_px * each.height_px)
    return action.model_copy(update={"x": element.x_px, "y": element.y_px})


def _hits(x_px: int, y_px: int, element: Element) -> bool:
    return 2 * abs(x_px - element.x_px) <= element.width_px and 2 * abs(y_px - element.y_px) <= element.height_px
