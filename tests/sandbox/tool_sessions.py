"""What tests of sessions with a terminal share: actions, episodes that follow the oracle, jails that fail."""

from __future__ import annotations

import signal

from sandbox.actions import Action, ToolCall
from sandbox.session import Session, Transition
from sandbox.terminal.jail import Jail


def bash(command: str) -> ToolCall:
    return ToolCall(name="execute_bash", arguments={"command": command})


async def follow(session: Session, *before: Action) -> Transition:
    """Take some actions, then what the oracle says until the episode ends."""
    for action in before:
        await session.step(action)
    while True:
        action = await session.oracle_action()
        assert action is not None
        transition = await session.step(action)
        if transition.terminated or transition.truncated:
            return transition


def fail(jail: Jail, signum: signal.Signals) -> None:
    """End a jail's process 1, or stop it, so that it answers nothing."""
    signal.pidfd_send_signal(jail._init_fd, signum)
