"""ToolError: what a tool says when it cannot do what the agent asked. It is fed back as text; it never leaves tools.py."""

from __future__ import annotations


class ToolError(Exception):
    """The message tells the agent what was wrong with its call. Deliberately no FlywheelError: nothing failed."""
