"""Demonstrations as rows of the warehouse: episodes, steps, screenshots, verdicts, and samples for SFT or CT whose prompts are the
PromptBuilder's own, so that what is trained is what is asked.

A good step of a completed demonstration is learned for SFT, with loss on its answer alone; everything else is for CT. Wrong steps stay in
the history of those that come after them, as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent.episode.episode import EpisodeRequest
from agent.episode.rows import action_json, message_rows
from agent.grammars.base import Grammar, NotRepresentable
from agent.grammars.elements import is_output_cut, render_observation
from agent.grammars.registry import grammar_named
from agent.prompts.prompt import OUTPUT_LIMITS, PromptBuilder
from agent.prompts.texts import Mode
from pipelines.importing.trajectories import Chat, DemonstratedStep, Demonstration, Entry, Importer
from sandbox.actions import Action
from sandbox.importing.fields import BadRecord, slug
from sandbox.session import Observation
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import ConfigError
from warehouse.core.identity import stable_seed
from warehouse.routing.samples import chat_row, sample_row

JUDGE_VERSION = "1"
CT_ORIGIN = "annotation"
"""What people did, as CT takes it: the mixture's sample pool `in_situ`."""
NOT_FOR_SFT = ("tutorial", "general", "manual")
Track = Literal["expert", "novice", "unreviewed"]
Row = dict[str, Any]


class ScreeningSettings(BaseModel):
    """What an import withholds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keep_personal_data: bool = False
    scripts: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_]+$")], ...] = ()
    min_script_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9


S = TypeVar("S", bound=ScreeningSettings)


class DemonstrationSettings(ScreeningSettings):
    """What an import makes of demonstrations."""

    track: Track
    grammar: str = "uitars2"
    answers: str | None = None
    domain: str = "desktop"
    mode: Mode = "computer"
    min_alignment: Annotated[int, Field(ge=0, le=10)] = 0
    outcome: Annotated[str, Field(max_length=1000)] | None = None
    policy: Annotated[str, Field(min_length=1, max_length=200)] | None = None


def settings_of(kind: type[S], **values: Any) -> S:
    """Raises ConfigError that names what is wrong by its option."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(f"--{'-'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())) from None


@dataclass(slots=True, kw_only=True)
class Rows:
    """By table name. `screenshots` come first when they are stored, `episodes` last."""

    of: dict[str, list[Row]] = field(default_factory=dict)

    def add(self, table: str, *rows: Row) -> None:
        self.of.setdefault(table, []).extend(rows)

    @property
    def num_bytes(self) -> int:
        return sum(len(row["data"]) for row in self.of.get("screenshots", ()))


class RowFactory:
    """Rows of one import's records. `importer` and `settings` are the same for all of them."""

    def __init__(self, importer: Importer, settings: DemonstrationSettings) -> None:
        """Raises ConfigError for an unknown grammar."""
        self._format, self._settings = importer.name, settings
        self._policy_id = settings.policy or importer.acted_by
        self._grammar: Grammar = grammar_named(settings.grammar)
        self._builders = {
            is_listed: PromptBuilder(self._grammar, mode=settings.mode, list_elements=is_listed) for is_listed in (False, True)
        }

    def request(self, demonstration: Demonstration, digest: str) -> EpisodeRequest:
        """Its identity: the same record is the same episode, under whatever name it is imported."""
        domain = demonstration.domain or self._settings.domain
        task = Task(source=self._format, name=slug(demonstration.task_id), domain=domain, max_steps=1000, version="demonstrations 1")
        attempt = stable_seed("demonstration", digest) % 2**31
        return EpisodeRequest(purpose="seed", task=task, seed=task.seeds(Split.TRAIN, 1)[0], attempt=attempt, policy_id=self._policy_id)

    def is_completed(self, demonstration: Demonstration) -> bool | None:
        """As the record or --outcome says; where neither is asked or says it, an expert's counts as completed."""
        if demonstration.completed is None:
            return True if self._settings.track == "expert" and self._settings.outcome is None else None
        return demonstration.completed

    def misaligned(self, demonstration: Demonstration) -> str:
        """Why `min_alignment` keeps it from SFT; empty where it does not. Raises BadRecord for a score that is not a number."""
        least, score = self._settings.min_alignment, demonstration.quality.get("alignment_score")
        if least == 0:
            return ""
        if score is None:
            return "no `alignment_score`, and --min-alignment asks for one"
        if not isinstance(score, (int, float)) or isinstance(score, bool):
            raise BadRecord(f"`alignment_score` is {score!r}, expected a number, as --min-alignment compares it")
        return "" if score >= least else f"`alignment_score` is below {least}"

    def of_demonstration(self, demonstration: Demonstration, entry: Entry) -> Rows:
        """Raises BadRecord."""
        request = self.request(demonstration, entry.digest)
        completed = self.is_completed(demonstration)
        for_sft = completed is True and not self.misaligned(demonstration) and self._settings.track != "novice"
        rows = Rows()
        steps = demonstration.load()
        self._count_cut(demonstration, steps)
        self._add_steps(rows, demonstration, request, steps, completed, for_sft=for_sft)
        rows.add("tasks", {"task_id": request.task.task_id, **request.task.model_dump(mode="json")})
        if demonstration.completed is not None:
            rows.add("verdicts", self._verdict(demonstration, request.episode_id))
        rows.add("episodes", _episode(request, demonstration.instruction, completed, len(steps), self._format))
        return rows

    def _count_cut(self, demonstration: Demonstration, steps: Sequence[DemonstratedStep]) -> None:
        limits = OUTPUT_LIMITS[self._grammar.layout]
        if num := sum(is_output_cut(step.output, limits) for step in steps):
            demonstration.lost[f"what a tool printed beyond its last {limits[0]} lines of {limits[1]} characters"] += num

    def _add_steps(
        self,
        rows: Rows,
        demonstration: Demonstration,
        request: EpisodeRequest,
        steps: Sequence[DemonstratedStep],
        completed: bool | None,
        *,
        for_sft: bool,
    ) -> None:
        builder = self._builders[any(step.picture is None for step in steps)]
        memory = builder.start(demonstration.instruction)
        for index, step in enumerate(steps):
            seen = _observation(demonstration.instruction, step)
            messages = builder.build(memory, seen)
            response = self._response(step, seen, index)
            parsed = self._grammar.parse(response, seen)
            if parsed.invalid is not None or [type(one) for one in parsed.actions] != [type(one) for one in step.actions]:
                raise BadRecord(f"step {index}: the grammar {self._grammar.name} cannot say {_names(step.actions)} in one answer")
            common: Row = {
                "domain": request.task.domain,
                "messages": messages,
                "response": response,
                "episode_id": request.episode_id,
                "step_index": index,
                "verdict": completed,
            }
            if for_sft and step.is_good:
                rows.add("sft_samples", sample_row("sft", origin="demonstration", **common))
            else:
                rows.add("ct_samples", sample_row("ct", origin=CT_ORIGIN, prompt_loss=1.0, **common))
            if step.picture is not None:
                rows.add("screenshots", step.picture.row)
            rows.add("steps", _step_row(request, index, step, seen, message_rows(messages), response))
            memory = builder.remember(memory, seen, response, parsed)

    def _response(self, step: DemonstratedStep, seen: Observation, index: int) -> str:
        """One answer with all actions of the step. Raises BadRecord for what the grammar cannot write."""
        try:
            parts = [self._grammar.format(step.thought if number == 0 else None, one, seen) for number, one in enumerate(step.actions)]
        except NotRepresentable as error:
            raise BadRecord(f"step {index}: {error}") from None
        return "\n".join(parts)

    def _verdict(self, demonstration: Demonstration, episode_id: str) -> Row:
        score = 1.0 if demonstration.completed else 0.0
        reasons = [f"{name} {value}" for name, value in demonstration.quality.items()]
        return {
            "episode_id": episode_id,
            "judge": self._format,
            "judge_version": JUDGE_VERSION,
            "kind": "verdict",
            "origin": demonstration.judged_by,
            "score": score,
            "threshold": 0.5,
            "passed": score >= 0.5,
            "reasons": reasons,
            **(demonstration.verdict or {}),
        }

    def of_chat(self, chat: Chat) -> Rows:
        """One sample; for SFT where only answers are learned and nothing says that it is of a failure. Raises BadRecord."""
        rows = Rows()
        pictures = chat.pictures()
        rows.add("screenshots", *(picture.row for picture in pictures))
        is_sft = (
            self._settings.track == "expert"
            and chat.verdict is not False
            and chat.origin not in NOT_FOR_SFT
            and not any(message["loss"] > 0 and message["role"] != "assistant" for message in chat.messages)
        )
        kind: Literal["sft", "ct"] = "sft" if is_sft else "ct"
        row = chat_row(
            kind,
            origin=chat.origin or ("demonstration" if is_sft else CT_ORIGIN),
            domain=chat.domain or self._settings.domain,
            messages=chat.messages,
            verdict=True if is_sft else chat.verdict,
        )
        rows.add(f"{kind}_samples", row if chat.sample_id is None else row | {"sample_id": chat.sample_id})
        return rows


def _observation(instruction: str, step: DemonstratedStep) -> Observation:
    return Observation(
        instruction=instruction,
        elements=step.elements,
        screenshot=step.picture.data if step.picture else None,
        width_px=step.size_px[0],
        height_px=step.size_px[1],
        time_ms=0.0,
        output=step.output,
    )


def _episode(request: EpisodeRequest, instruction: str, completed: bool | None, num_steps: int, format: str) -> Row:
    """Where nobody says whether it was completed, nothing is claimed: it counts as cut off, without a reward."""
    return {
        "episode_id": request.episode_id,
        "purpose": request.purpose,
        "task_id": request.task.task_id,
        "task_name": request.task.name,
        "domain": request.task.domain,
        "seed": request.seed,
        "split": request.split.value,
        "attempt": request.attempt,
        "policy_id": request.policy_id,
        "temperature": 0.0,
        "instruction": instruction,
        "outcome": "truncated" if completed is None else "success" if completed else "failure",
        "reward": None if completed is None else float(completed),
        "num_steps": num_steps,
        "num_retries": 0,
        "error": None,
        "duration_ms": 0.0,
        "environment": f"demonstrations in the format {format}",
    }


def _step_row(request: EpisodeRequest, index: int, step: DemonstratedStep, seen: Observation, messages: list[Row], response: str) -> Row:
    return {
        "episode_id": request.episode_id,
        "step_index": index,
        "policy_id": request.policy_id,
        "observation": render_observation(seen),
        "screenshot_id": step.picture.screenshot_id if step.picture else None,
        "messages": messages,
        "response": response,
        "thought": step.thought,
        "action": action_json(step.actions),
        "prompt_token_ids": [],
        "response_token_ids": [],
        "response_logprobs": [],
        "reward": 0.0,
        "latency_ms": 0.0,
    }


def _names(actions: Sequence[Action]) -> str:
    return ", ".join(action.kind for action in actions)
