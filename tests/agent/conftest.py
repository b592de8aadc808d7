"""A small real environment without a browser for the tests of the agent: a form page computed in Python, its oracle, and a pool of it.

Not a mock: it keeps state, verifies, takes screenshots, and can lose its browser on purpose. Real Chromium is in test_browser_episodes.py.
"""

from __future__ import annotations

import asyncio
import re
import struct
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from agent.episode.episode import EpisodeRequest
from agent.policy.policy import Prompt, Response
from sandbox.actions import Action, Click, Finished, Hotkey, TypeText
from sandbox.session import Element, Observation, Transition, Verdict
from sandbox.tasks.task import Task
from warehouse.core.errors import BrowserCrashed
from warehouse.core.identity import stable_seed

WORDS = ("apple", "brook", "cedar", "delta")
TASK = Task(source="form", name="enter-word", domain="forms", max_steps=6)
INPUT_AT, SUBMIT_AT, CANCEL_AT = (40, 40), (30, 80), (90, 80)


def png(width_px: int, height_px: int, shade: int) -> bytes:
    """A grey picture as a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes([shade]) * width_px) * height_px
    header = struct.pack(">IIBBBBB", width_px, height_px, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@dataclass(slots=True)
class FormSession:
    """Type the word of the instruction into the field and press Submit. Cancel ends it badly; Enter submits; `finished` submits nothing."""

    crash_plan: list[int] = field(default_factory=list)
    """Number of steps after which each coming episode loses its browser; episodes beyond the list are undisturbed."""
    environment: str = "form 1"
    is_solvable: bool = True
    """whether its oracle knows what to do"""
    num_resets: int = 0
    _left: int | None = None
    _word: str = ""
    _value: str = ""
    _focused: bool = False
    _done: bool = False

    async def reset(self, task: Task, seed: int) -> Observation:
        await asyncio.sleep(0)
        self.num_resets += 1
        self._left = self.crash_plan.pop(0) if self.crash_plan else None
        self._word = WORDS[stable_seed("form", seed) % len(WORDS)]
        self._value, self._focused, self._done = "", False, False
        return self._observe()

    async def step(self, action: Action) -> Transition:
        await asyncio.sleep(0)
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise BrowserCrashed("the form's browser went away, as planned")
        match action:
            case Click(x=x, y=y):
                self._focused = (x, y) == INPUT_AT
                self._done = (x, y) in (SUBMIT_AT, CANCEL_AT)
                if (x, y) == CANCEL_AT:
                    self._value = ""
            case TypeText(text=text) if self._focused:
                self._value += text.removesuffix("\n")
                self._done = text.endswith("\n")
            case Hotkey(keys=("enter",)) if self._focused:
                self._done = True
            case Finished():
                pass
        return Transition(observation=self._observe(), reward=float(self._solved), terminated=self._done, truncated=False)

    async def evaluate(self) -> Verdict:
        return Verdict(origin="verifier", score=float(self._solved), threshold=1.0)

    async def oracle_action(self) -> Action | None:
        return form_oracle(self._observe()) if self.is_solvable else None

    async def close(self) -> None:
        self._left = 0

    @property
    def _solved(self) -> bool:
        return self._done and self._value == self._word

    def _observe(self) -> Observation:
        def element(role: str, text: str, at: tuple[int, int], *states: str) -> Element:
            return Element(role=role, text=text, states=states, x_px=at[0], y_px=at[1], width_px=40, height_px=12)

        return Observation(
            instruction=f'Enter "{self._word}" into the text field and press Submit.',
            elements=(
                element("input", self._value, INPUT_AT, *(("focused",) if self._focused else ())),
                element("button", "Submit", SUBMIT_AT),
                element("button", "Cancel", CANCEL_AT),
            ),
            screenshot=png(160, 210, stable_seed(self._word, self._value, self._focused, self._done) % 256),
            width_px=160,
            height_px=210,
            time_ms=0.0,
        )


def form_oracle(observation: Observation) -> Action | None:
    """Knows the form; gives up once something wrong stands in the field, which it has no way to clear."""
    match = re.search(r'"(\w+)"', observation.instruction)
    if match is None:
        return None
    field_element = observation.elements[0]
    if field_element.text == match.group(1):
        return Click(x=SUBMIT_AT[0], y=SUBMIT_AT[1])
    if field_element.text:
        return None
    return TypeText(text=match.group(1)) if "focused" in field_element.states else Click(x=INPUT_AT[0], y=INPUT_AT[1])


class ReadingPolicy:
    """A small deterministic policy that reads the compact prompt and does the task; where the step's seed says so, it errs.

    `error_rate` 0 always solves the form. Records the sizes of the batches it was asked.
    """

    policy_id = "policy-reading"

    def __init__(self, error_rate: float = 0.0, delay_s: float = 0.0) -> None:
        self.error_rate = error_rate
        self.delay_s = delay_s
        self.batches: list[int] = []

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        self.batches.append(len(prompts))
        await asyncio.sleep(self.delay_s)
        return [self._answer(prompt) for prompt in prompts]

    def _answer(self, prompt: Prompt) -> Response:
        content = prompt.messages[-1].content
        word = re.search(r'"(\w+)"', content)
        if prompt.sampling.temperature and prompt.sampling.seed % 1000 < 1000 * self.error_rate:
            text = ("Thought click Action click [3]", "Action fly", "Thought type Action type")[prompt.sampling.seed % 3]
        elif word and f'focused "{word.group(1)}" <input> [1]' in content:
            text = "Thought click Action click [2]"
        elif word and 'focused "" <input> [1]' in content:
            text = f'Thought type Action type "{word.group(1)}"'
        else:
            text = "Thought click Action click [1]"
        return Response(text=text, prompt_token_ids=(1, 2), token_ids=(3, 4), logprobs=(-0.1, -0.2), policy_id=self.policy_id)


class FormPool:
    """A pool of form sessions; a session that crashed is replaced when its lease ends."""

    def __init__(self, size: int, crash_plan: Sequence[Sequence[int]] = ()) -> None:
        self.size = size
        plans = [list(plan) for plan in crash_plan] + [[] for _ in range(size)]
        self._free: asyncio.Queue[FormSession] = asyncio.Queue()
        for plan in plans[:size]:
            self._free.put_nowait(FormSession(crash_plan=plan))
        self.num_leased = 0
        self.num_replaced = 0
        self.is_closed = False

    @asynccontextmanager
    async def lease(self, task: Task | None = None, *, screenshots: bool = True) -> AsyncIterator[FormSession]:
        session = await self._free.get()
        self.num_leased += 1
        try:
            yield session
        except BrowserCrashed:
            self.num_replaced += 1
            session = FormSession(crash_plan=session.crash_plan)
            raise
        finally:
            self.num_leased -= 1
            self._free.put_nowait(session)

    async def close(self) -> None:
        self.is_closed = True


def form_request(seed: int = 0, *, temperature: float = 0.0, max_steps: int = 6, screenshots: bool = True) -> EpisodeRequest:
    return EpisodeRequest(
        purpose="rollout",
        task=TASK.model_copy(update={"max_steps": max_steps}),
        seed=seed,
        policy_id=ReadingPolicy.policy_id,
        temperature=temperature,
        screenshots=screenshots,
    )


@pytest.fixture
def form() -> SimpleNamespace:
    """The environment's parts by name: Session, Pool, Policy, request, task, png."""
    return SimpleNamespace(Session=FormSession, Pool=FormPool, Policy=ReadingPolicy, request=form_request, task=TASK, png=png)
