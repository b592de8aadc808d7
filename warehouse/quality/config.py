"""Settings of the quality filters. What each computes is that of warehouse/quality/*.sql; this module is light to import."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]


class QualityConfig(BaseModel):
    """Thresholds of the filters. Every filter passes when its score is at least its threshold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    success_threshold: Annotated[Share, Field(description="reward from which the environment's verifier says V = 1")] = 0.999
    min_valid_fraction: Annotated[Share, Field(description="share of steps whose action could be parsed")] = 1.0
    min_effective_fraction: Annotated[Share, Field(description="share of actions after which the screen or the elements differ")] = 0.5
    min_fresh_fraction: Annotated[Share, Field(description="share of steps that do not repeat an action on a screen it was tried on")] = 0.7
    max_repeats: Annotated[int, Field(ge=1, description="longest run of one action, whatever the screens; more of them demote")] = 24
    min_settled_fraction: Annotated[
        Share, Field(description="share of actions taken on a screen that showed something and was not loading; 0 only records it")
    ] = 0.0
    busy_patterns: Annotated[
        tuple[str, ...], Field(description="regular expressions (RE2) of elements of a screen that is still loading")
    ] = ("<progressbar>", "<busy>", "aria-busy", '"[Ll]oading[ .…]*"', '"[Pp]lease wait[ .…]*"')
    min_consistent_fraction: Annotated[Share, Field(description="share of steps whose thought does not contradict the action")] = 1.0
    min_steps: Annotated[int, Field(ge=1, description="fewest steps with something written in them")] = 1
    length_floor: Annotated[int, Field(ge=1, description="an episode of so many steps is never too long")] = 8
    max_length_ratio: Annotated[float, Field(ge=1, description="longest episode, in median lengths of the task's solved ones")] = 3.0
    min_novelty: Annotated[Share, Field(description="1 - similarity to the most similar earlier episode with the same actions")] = 0.1
    max_screen_distance: Annotated[
        int, Field(ge=0, le=128, description="bits in which the perceptual hashes of two pictures may differ that count as one screen")
    ] = 2
    min_trajectory_novelty: Annotated[
        Share, Field(description="1 - similarity to an earlier episode of the task, whatever its actions; 0 switches the filter off")
    ] = 0.0
    leak_min_letters: Annotated[int, Field(ge=3, description="shortest typed word that must have been readable somewhere")] = 5
    leak_patterns: Annotated[tuple[str, ...], Field(description="regular expressions (RE2) of hidden data in what the agent was shown")] = (
        r"\bWOB_[A-Z_]+",
        r"\bdata-wob[_-]",
        r'^\s*\{.*"[^"]+"\s*:',
        r'"(answer|solution|expected|ground_truth)"\s*:',
    )
    min_evaluation_distance: Annotated[
        Share,
        Field(
            description="1 - similarity of instruction and first screen to those of an instance that is evaluated on; 0 switches the "
            "filter off, for tasks with few different instances"
        ),
    ] = 0.0
    screen_personal_data: Annotated[
        bool, Field(description="look for personal data in episodes that people recorded or annotated, and withhold what has any")
    ] = True
    scripts: Annotated[
        tuple[str, ...],
        Field(description="scripts that people's words may be in (Latin, Cyrillic, Han, …: Unicode names); empty allows every one"),
    ] = ()
    min_script_fraction: Annotated[Share, Field(description="share of the letters of people's words that are in `scripts`")] = 0.9
    max_solved_per_task: Annotated[
        int | None, Field(ge=1, description="solved episodes of one task and iteration that count as good; null: all of them")
    ] = None
