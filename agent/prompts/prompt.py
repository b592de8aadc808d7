"""The prompt builder: memory and the current observation in, chat messages out. The only place that decides what a policy is asked.

Collection, training, annotation and serving all build prompts here, so what is trained is exactly what is asked. How answers are written
is a grammar's business (agent/grammars), the standing instructions of the chat grammars are agent/prompts/texts.py's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from agent.grammars.base import Grammar, ParsedResponse
from agent.grammars.elements import MAX_ELEMENTS, MAX_OUTPUT_LINES, MAX_TEXT_CHARS, render_elements, render_observation, render_output
from agent.grammars.quoting import escape, one_line
from agent.grammars.registry import grammar_named
from agent.policy.policy import Message
from agent.prompts.memory import Event, Memory, MemoryStep, fold_step, fold_step_with_notes, newly_seen
from agent.prompts.texts import Mode, standing_text
from sandbox.actions import Click
from sandbox.session import Observation

EPISODIC_CHARS = {"elements": 160, "chat": 1600}
"""Of episodic memory, as much of the newest as fits into one line of this length, by layout."""
OUTPUT_LIMITS = {"elements": (MAX_OUTPUT_LINES, MAX_TEXT_CHARS), "chat": (60, 200)}
"""Of what a tool printed, the last so many lines and so many characters of each, by layout."""
MAX_INTENTION_CHARS = 100
Standing = Callable[[str, Mode, str], tuple[Message, ...]]
"""From the grammar's name, the mode and the instruction to the messages that open a chat prompt."""
IMAGE_PATCH_PX = 28
"""A vision-language model of the Qwen2.5-VL kind reads one token per square of this side."""


def estimate_tokens(text: str) -> int:
    """A rough count for a word tokenizer with fallback pieces: one per word, and one more for each further four characters of it."""
    return sum(1 + (len(word) - 1) // 4 for word in re.findall(r"\w+|[^\w\s]", text))


def training_messages(messages: Sequence[Message], response: str) -> tuple[Message, ...]:
    """A training sample: the prompt as it was asked, and the answer, which alone is learned. Older answers in it are context."""
    return (*(replace(message, loss=0.0) for message in messages), Message(role="assistant", content=response, loss=1.0))


class PromptBuilder:
    """Builds prompts for one grammar. Deterministic: the same memory and observation give the same messages.

    `window` is k, the steps that stay verbatim (compact 4, chat 100); `episodic_chars` the length of the summary of earlier ones (0:
    only how many there were); `notes` adds to each past step what came into view after it; `max_tokens` is the length of a prompt that
    is never exceeded as counted by `count_tokens`; `max_screenshots` counts the current one; `mode` chooses the standing text of
    the chat grammars, `standing` writes it; `list_elements` adds the current elements to the chat layout, for models that cannot see.
    """

    def __init__(
        self,
        grammar: str | Grammar = "compact",
        *,
        window: int | None = None,
        episodic_chars: int | None = None,
        notes: bool = False,
        max_tokens: int | None = None,
        max_screenshots: int = 5,
        mode: Mode = "computer",
        list_elements: bool = False,
        count_tokens: Callable[[str], int] = estimate_tokens,
        standing: Standing = standing_text,
    ) -> None:
        self.grammar = grammar_named(grammar) if isinstance(grammar, str) else grammar
        is_compact = self.grammar.layout == "elements"
        self.window = window if window is not None else (4 if is_compact else 100)
        self.episodic_chars = episodic_chars if episodic_chars is not None else EPISODIC_CHARS[self.grammar.layout]
        self.notes = notes
        self.max_tokens = max_tokens if max_tokens is not None else (960 if is_compact else 32_000)
        self.max_screenshots = max_screenshots
        self.mode = mode
        self.list_elements = list_elements
        self._count_tokens = count_tokens
        self._standing = standing

    @property
    def shows_screens(self) -> bool:
        """Whether prompts carry pictures: episodes of such a policy have to be asked for with screenshots."""
        return self.grammar.layout == "chat" and self.max_screenshots > 0

    def start(self, instruction: str) -> Memory:
        """The empty memory of a new episode."""
        return Memory(instruction=instruction, window=self.window, summarise=fold_step_with_notes if self.notes else fold_step)

    def remember(self, memory: Memory, observation: Observation, response: str, parsed: ParsedResponse) -> Memory:
        """The memory after a step that answered `observation` with `response`."""
        line = "; ".join(self.grammar.describe(action, observation) for action in parsed.actions)
        intention = line
        if self.grammar.layout == "chat" and parsed.thought:
            intention = re.split(r"(?<=[.!?。！？])\s", parsed.thought.strip(), maxsplit=1)[0][:MAX_INTENTION_CHARS]
        return memory.remember(MemoryStep(observation=observation, response=response, parsed=parsed, line=line, intention=intention))

    def build(self, memory: Memory, observation: Observation) -> tuple[Message, ...]:
        """The messages to ask with. When they would be too long, the oldest history goes first, then the last elements of the list;
        the prompt itself says how many of either are missing."""
        layout = self._compact if self.grammar.layout == "elements" else self._chat
        num_turns = len(memory.working)
        for keep in range(num_turns, -1, -1):
            messages = layout(memory, observation, keep, MAX_ELEMENTS)
            if self._length(messages, observation) <= self.max_tokens:
                return messages
        for limit in range(min(len(observation.elements), MAX_ELEMENTS), -1, -1):
            messages = layout(memory, observation, 0, limit)
            if self._length(messages, observation) <= self.max_tokens:
                break
        return messages

    def _length(self, messages: Sequence[Message], observation: Observation) -> int:
        image_tokens = math.ceil(observation.width_px / IMAGE_PATCH_PX) * math.ceil(observation.height_px / IMAGE_PATCH_PX)
        return sum(self._count_tokens(message.content) + (image_tokens if message.screenshot_id else 0) for message in messages)

    def _compact(self, memory: Memory, observation: Observation, keep: int, max_elements: int) -> tuple[Message, ...]:
        """One user message: instruction, what came earlier, the last `keep` steps, the elements."""
        recent = memory.working[len(memory.working) - keep :]
        lines = [one_line(memory.instruction)]
        num_earlier = memory.num_forgotten + len(memory.working) - keep
        if num_earlier:
            events = events_text(memory.episodic, self.episodic_chars) if keep == len(memory.working) else ""
            lines.append(f"earlier {num_earlier} steps {events}".rstrip())
        seen_after = [*(step.observation for step in recent), observation][1:]
        for step, after in zip(recent, seen_after, strict=True):
            lines.append(step.line + (seen_text(newly_seen(step.observation, after)) if self.notes else ""))
        lines.append(render_observation(observation, max_elements))
        return (Message(role="user", content="\n".join(line for line in lines if line)),)

    def _chat(self, memory: Memory, observation: Observation, keep: int, max_elements: int) -> tuple[Message, ...]:
        """Standing text and task, then the turns: a screen from the user, thought and action from the assistant."""
        recent = memory.working[len(memory.working) - keep :]
        messages = list(self._standing(self.grammar.name, self.mode, memory.instruction))
        num_earlier = memory.num_forgotten + len(memory.working) - keep
        if num_earlier:
            events = events_text(memory.episodic, self.episodic_chars)
            messages.append(Message(role="user", content=f"Before this you took {num_earlier} steps. {events}".rstrip()))
        notice = ""
        for index, step in enumerate(recent):
            # The current screen is one of the last `max_screenshots`.
            is_shown = index >= len(recent) - self.max_screenshots + 1
            messages.append(self._screen(step.observation, notice, is_shown=is_shown, max_elements=0))
            messages.append(Message(role="assistant", content=step.response))
            invalid = step.parsed.invalid
            notice = f"That was not carried out: {invalid.reason}. " if invalid else ""
        messages.append(self._screen(observation, notice, is_shown=True, max_elements=max_elements))
        return tuple(messages)

    def _screen(self, observation: Observation, notice: str, *, is_shown: bool, max_elements: int) -> Message:
        """A user turn: the screenshot, or a placeholder for one that is too old to be kept in view; then what a tool printed."""
        has_image = is_shown and self.max_screenshots > 0 and observation.screenshot is not None
        text = notice + ("" if has_image else "[screen not shown]")
        if output := render_output(observation, OUTPUT_LIMITS["chat"]):
            text = f"{text}\n{output}".strip()
        if self.list_elements and max_elements:
            text = f"{text}\n{self._elements_with_clicks(observation, max_elements)}".strip()
        return Message(role="user", content=text.strip(), screenshot_id=observation.screenshot_id if has_image else None)

    def _elements_with_clicks(self, observation: Observation, limit: int) -> str:
        """The element list, each line with the call that clicks it: the chat grammars name points, not numbers."""
        lines = render_elements(observation, limit).split("\n")
        for row, element in enumerate(observation.elements[:limit]):
            lines[row] += f" {self.grammar.describe(Click(x=element.x_px, y=element.y_px), observation)}"
        return "\n".join(lines)


def seen_text(seen: Sequence[str]) -> str:
    """What came into view after a step, as its line in the history ends with it."""
    return "".join([" saw", *(f' "{escape(text)}"' for text in seen)]) if seen else ""


def events_text(events: Sequence[Event], max_chars: int) -> str:
    """Episodic memory in one line: intention, how often, and what came of it where that was nothing or was noted. The newest that fit."""
    if max_chars == 0:
        return ""
    written: list[str] = []
    for event in reversed(events):
        times = f" {event.num_steps} times" if event.num_steps > 1 else ""
        result = " no change" if event.outcome == "no change" else ""
        text = f"{event.intention}{times}{result}{seen_text(event.seen)}"
        if sum(len(part) + 3 for part in written) + len(text) > max_chars:
            written.append("...")
            break
        written.append(text)
    return " ; ".join(reversed(written))
