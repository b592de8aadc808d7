"""Values that cross a wire come out as they went in, both ways of writing them; what does not fit is named."""

from __future__ import annotations

import pytest

from sandbox import wire
from sandbox.actions import Click, ToolCall
from sandbox.session import Element, Observation, Transition, Verdict
from sandbox.tasks.task import Task
from warehouse.core.errors import SandboxError

SCREEN = Observation(
    instruction="Öffne „Datei“",
    elements=(Element(role="button", text="Ok", states=("focused",), x_px=1, y_px=2, width_px=3, height_px=4),),
    screenshot=bytes(range(256)),
    width_px=160,
    height_px=210,
    time_ms=16.67,
    output="$ ls\n",
)
VALUES = [
    (wire.OBSERVATION, SCREEN),
    (wire.TRANSITION, Transition(observation=SCREEN, reward=1.0, terminated=True, truncated=False, info={"dialogs": ["hello"]})),
    (wire.VERDICT, Verdict(origin="verifier", score=0.5, threshold=0.9, reasons=("not yet",))),
    (wire.TASK, Task(source="miniwob", name="click-test", domain="pointing", max_steps=3)),
    (wire.ACTION, Click(x=3, y=4)),
    (wire.ACTION, ToolCall(name="execute_bash", arguments={"command": "ls"})),
    (wire.ACTION, None),
]


@pytest.mark.parametrize(("codec", "value"), VALUES)
def test_values_survive_the_wire(codec: wire.Codec[object], value: object) -> None:
    assert codec.from_plain(codec.to_plain(value)) == value
    assert codec.from_json(codec.to_json(value)) == value


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(SandboxError, match=r"not a valid action: .*same version"):
        wire.ACTION.from_plain({"kind": "fly"})
    with pytest.raises(SandboxError, match=r"not a valid verdict: score: .*'much'"):
        wire.VERDICT.from_json(b'{"origin": "verifier", "score": "much", "threshold": 1}')
