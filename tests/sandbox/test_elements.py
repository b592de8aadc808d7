"""What elements.js finds on a page written by hand: every kind of thing, and nothing that does not show."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest

from sandbox.actions import Click
from sandbox.pool.pool import SessionPool
from sandbox.session import Element, Observation
from sandbox.tasks.task import Task

OPTIONS = {
    "area": [240, 300],
    "textless": ["#query"],
    "roles": [[".clickable", "item"]],
    "names": [[".star", "star"]],
    "states": [[".star", "selected"]],
}
EXPECTED = [
    ("shape", "red square", ()),
    ("text", "Plain", ()),
    ("text", "bold", ()),
    ("link", "a link", ()),
    ("button", "Press", ()),
    ("button", "Off", ("disabled",)),
    ("button", "Close", ()),
    ("checkbox", "Boxed", ("checked",)),
    ("radio", "Round", ()),
    ("text", "Name", ()),
    ("input", "Ann Lee", ("focused",)),
    ("input", "empty", ()),
    ("input", "***", ()),
    ("select", "two", ()),
    ("textarea", "note", ()),
    ("tab", "First", ("selected",)),
    ("tab", "Second", ()),
    ("header", "More", ("expanded",)),
    ("text", "inside", ()),
    ("slider", "50", ()),
    ("spinner", "4", ()),
    ("item", "red", ()),
    ("item", "blue", ("selected",)),
    ("image", "bell", ()),
    ("image", "star", ("selected",)),
    ("item", "choose me", ()),
    ("shape", "blue circle", ()),
    ("shape", "black outlined rectangle", ()),
    ("shape", "green triangle", ()),
    ("shape", "purple square", ()),
    ("text", "seen line", ()),
    ("text", "second", ()),
    ("shape", "grey rectangle", ()),
]


def state_script(options: dict[str, Any]) -> str:
    extract = (resources.files("sandbox.browser") / "elements.js").read_text(encoding="utf-8").strip()
    return f"({{instruction: '', elements: ({extract})({json.dumps(options)}), reward: 0, done: false}})"


@pytest.fixture(scope="module")
def look(live_pool: Callable[..., Any], html_source: Callable[..., Any], html_task: Callable[..., Task]) -> Any:
    """`look(*actions)`: the observation of the page after these actions."""
    source = html_source()
    source.state_script = state_script(OPTIONS)

    async def run(pool: SessionPool, *actions: Click) -> Observation:
        async with pool.lease() as session:
            observation = await session.reset(html_task("elements"), 0)
            for action in actions:
                observation = (await session.step(action)).observation
            return observation

    with live_pool(SessionPool({"html": source}, size=1)) as live:
        yield lambda *actions: live.run(lambda pool: run(pool, *actions))


def named(observation: Observation, text: str) -> Element:
    return next(element for element in observation.elements if element.text == text)


def test_lists_what_shows_in_reading_order(look: Callable[..., Observation]) -> None:
    assert [(e.role, e.text, e.states) for e in look().elements] == EXPECTED


def test_points_hit_inside_the_area(look: Callable[..., Observation]) -> None:
    for element in look().elements:
        assert 0 <= element.x_px < 240 and 0 <= element.y_px < 300
        assert element.width_px > 0 and element.height_px > 0


def test_a_click_on_a_point_reaches_the_element(look: Callable[..., Observation]) -> None:
    box = named(look(), "Boxed")
    assert named(look(Click(x=box.x_px, y=box.y_px)), "Boxed").states == ()


def test_a_triple_click_shows_as_selected(look: Callable[..., Observation]) -> None:
    name = named(look(), "Ann Lee")
    assert named(look(Click(x=name.x_px, y=name.y_px, count=3)), "Ann Lee").states == ("selected", "focused")


def test_hidden_attributes_are_not_read(look: Callable[..., Observation]) -> None:
    texts = {element.text for element in look().elements}
    assert not texts & {"secret", "never read", "hidden", "unseen", "covered", "beside", "scrolled away", "below"}
