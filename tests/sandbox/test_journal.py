"""What a viewer reads of a session's tools: each thing once, though observations say it again."""

from __future__ import annotations

from sandbox.actions import Action, Click, Finished, InvalidAction, ToolCall
from sandbox.server.journal import Journal
from sandbox.session import Observation, Transition
from sandbox.tasks.task import Task

CLICK = Click(x=1, y=1)
LS = ToolCall(name="execute_bash", arguments={"command": "ls"})
STEPS: list[tuple[Action, str, str]] = [
    (CLICK, "", ""),
    (LS, "a\n[exit code 0]", "$ ls\na\n[exit code 0]\n"),
    (CLICK, "a\n[exit code 0]", ""),
    (CLICK, "a\n[exit code 0]\ndownloaded x", "downloaded x\n"),
    (InvalidAction(text="?", reason="?"), "a\n[exit code 0]", ""),
    (CLICK, "a\n[exit code 0]\ndownloaded y", "downloaded y\n"),
    (LS, "a\n[exit code 0]", "$ ls\na\n[exit code 0]\n"),
    (ToolCall(name="Search", arguments={"query": "z"}), "", "$ Search query='z'\n"),
    (Finished(), "", ""),
]


def seen(output: str) -> Observation:
    return Observation(instruction="", elements=(), screenshot=None, width_px=1, height_px=1, time_ms=0.0, output=output)


def test_what_was_printed_before_is_not_printed_again() -> None:
    journal, printed = Journal(), ""
    journal.note_reset(Task(source="hybrid", name="x", domain="hybrid", max_steps=9), 1, seen(""))
    for action, output, new in STEPS:
        journal.note_step(action, Transition(observation=seen(output), reward=0.0, terminated=False, truncated=False, info={}))
        printed += new
        assert journal.output == printed, action


def test_a_call_that_was_not_carried_out_prints_nothing() -> None:
    journal = Journal()
    journal.note_reset(Task(source="hybrid", name="x", domain="hybrid", max_steps=9), 1, seen("a"))
    info = {"ignored": "the episode is over"}
    journal.note_step(LS, Transition(observation=seen("a"), reward=0.0, terminated=True, truncated=False, info=info))
    assert journal.output == ""
