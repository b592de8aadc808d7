"""GameState: what every game says about itself, whichever it is. The one home of the games' JSON schema; schema.json is made from it.

    python -m sandbox.tasks.games.state > sandbox/tasks/games/schema.json

The rules that lead to a state are the games' own (pages/*.js); what a state is worth as an episode is source.py.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class GameElement(BaseModel):
    """A thing on the board, for policies that read text. The point is where a click hits it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Annotated[str, Field(min_length=1, description="one word: cell, button, piece, …")]
    text: str
    states: tuple[str, ...]
    x: Annotated[int, Field(description="middle, in pixels of the viewport")]
    y: Annotated[int, Field(description="middle, in pixels of the viewport")]
    width: Annotated[int, Field(ge=0, description="pixels")]
    height: Annotated[int, Field(ge=0, description="pixels")]


class GameState(BaseModel):
    """Value of `window.game.state()` in every game's page."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    game: Annotated[str, Field(description="which game: the name of its page")]
    version: Annotated[str, Field(description="the game's version and the engine's, e.g. 1.2", pattern=r"^\d+\.\d+$")]
    checksum: Annotated[str, Field(description="id of the files that the game is made of; empty where a person opened the page")]
    seed: Annotated[int, Field(ge=0, description="with the level and the inputs it decides everything")]
    level: Annotated[int, Field(ge=1, description="the level that is played now")]
    score: Annotated[float, Field(description="in the game's own points")]
    lives: Annotated[int, Field(ge=0, description="what is left; games without lives have one until it is lost")]
    over: Annotated[bool, Field(description="the game itself ended, by loss or because nothing can be done any more")]
    won: Annotated[bool, Field(description="the goal is reached; without a goal, the game is solved")]
    done: Annotated[bool, Field(description="won or over: nothing changes any more")]
    reason: Annotated[str, Field(description="why it ended: goal, or the game's own words; empty while it runs")]
    steps: Annotated[int, Field(ge=0, description="inputs that the game took as a move")]
    time_ms: Annotated[int, Field(ge=0, description="the game's own time")]
    goal: Annotated[str, Field(description="name of the goal; empty in free play")]
    target: Annotated[float, Field(description="the goal is reached when progress is at least this")]
    progress: Annotated[float, Field(description="what the goal measures, now")]
    reference_score: Annotated[float, Field(ge=0, description="the oracle's score at the end of this task; 0 in free play")]
    reward: Annotated[float, Field(ge=0, le=1, description="1 when won; before, score over reference score, at most 0.9")]
    instruction: Annotated[str, Field(min_length=1, description="the goal and the controls, in words")]
    elements: Annotated[tuple[GameElement, ...], Field(description="empty unless the task observes elements")]
    metadata: Annotated[dict[str, Any], Field(description="the game's own state: its board, and what its score counts")]


def schema_json() -> str:
    """The schema as text, as it is kept in schema.json."""
    return json.dumps(GameState.model_json_schema(), indent=1) + "\n"


if __name__ == "__main__":
    print(schema_json(), end="")
