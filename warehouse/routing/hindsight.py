"""Which instruction a failed episode does carry out, as far as solved attempts at its task show it.

Nothing is guessed from a task's name. Solved attempts that did the same kinds of things say how their task words what was done: where each
text that they acted on stands once in their instruction, the rest of it is the task's wording. Where all of them agree on it, and their
texts differ, a failed attempt of the same form has carried out that wording with its own texts:

    solved   Click on the "Ok" button.    click "Ok" <button>          wording: Click on the "…" button.
    failed   Click on the "no" button.    click "Yes" <button>         carried out: Click on the "Yes" button.

An action on something that the instruction does not name must have been the same in all of them, and in the failed one. So tasks that ask
for what has to be found, counted or worked out get no instruction, and neither do answers that name points instead of elements.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Row = Mapping[str, Any]
ReadElements = Callable[[str, str], Sequence[tuple[str, str, str]]]
"""(answer, screen) → (name, role, number) of each of the screen's elements that the answer acts on. How answers and screens are written is
the agent's to know."""
_QUOTED = re.compile(r'"([^"]*)"')


class ElementAction(NamedTuple):
    """One action: what was done, to what kind of element, and the text that it was done to or with: of an element without a name its
    number. `same_as`: the first action of the episode with this text."""

    kind: str
    role: str
    text: str
    same_as: int


Form = tuple[str, tuple[tuple[str, str, int], ...]]
"""A task, and of each action all but the text."""


@dataclass(frozen=True, slots=True)
class Wording:
    """The parts of an instruction between its texts, the actions whose texts stand between them, and the texts of all others."""

    parts: tuple[str, ...]
    slots: tuple[int, ...]
    fixed: tuple[tuple[int, str], ...]

    def filled(self, actions: Sequence[ElementAction]) -> str | None:
        """The instruction that these actions carry out."""
        if any(actions[place].text != text for place, text in self.fixed):
            return None
        texts = (actions[place].text for place in self.slots)
        return self.parts[0] + "".join(f"{text}{part}" for text, part in zip(texts, self.parts[1:], strict=True))


@dataclass(frozen=True, slots=True)
class Wordings:
    """Those that are known of each form, and how answers are read."""

    of_form: Mapping[Form, Sequence[Wording]]
    read_elements: ReadElements


NO_WORDINGS = Wordings({}, lambda answer, screen: ())


def wordings_of(solved: Iterable[Sequence[Row]], read_elements: ReadElements) -> Wordings:
    """What solved episodes, each the rows of its steps, show together: wordings that two different instructions have, and that none of
    those episodes contradicts."""
    attempts: dict[Form, list[tuple[list[ElementAction], str]]] = defaultdict(list)
    for steps in solved:
        if actions := _actions(steps, read_elements):
            attempts[_form(steps, actions)].append((actions, steps[0]["instruction"]))
    return Wordings({form: wordings for form, of_form in attempts.items() if (wordings := _agreed(of_form))}, read_elements)


def _agreed(attempts: Sequence[tuple[Sequence[ElementAction], str]]) -> list[Wording]:
    found = {wording: None for actions, instruction in attempts if (wording := _wording(instruction, actions)) is not None}
    agreed = []
    for wording in found:
        filled = [(wording.filled(actions), instruction) for actions, instruction in attempts]
        fitting = {instruction for made, instruction in filled if made is not None}
        if len(fitting) > 1 and all(made in (None, instruction) for made, instruction in filled):
            agreed.append(wording)
    return agreed


def achieved(steps: Sequence[Row], wordings: Wordings) -> str | None:
    """The instruction that an episode carried out, other than its own; None where none or several are found."""
    actions = _actions(steps, wordings.read_elements)
    known = wordings.of_form.get(_form(steps, actions), ()) if actions else ()
    made = {instruction for wording in known if (instruction := wording.filled(actions)) is not None}
    return made.pop() if len(made) == 1 and steps[0]["instruction"] not in made else None


def with_instruction(messages: Sequence[Row], before: str, instruction: str) -> list[dict[str, Any]] | None:
    """The prompt with another instruction in the place of its own; None where it does not stand in it as it is."""
    for place, message in enumerate(messages):
        if message["role"] == "user" and before and before in message["content"]:
            changed = {**message, "content": message["content"].replace(before, instruction, 1)}
            return [*map(dict, messages[:place]), changed, *map(dict, messages[place + 1 :])]
    return None


def _form(steps: Sequence[Row], actions: Sequence[ElementAction]) -> Form:
    return steps[0]["task_id"], tuple((action.kind, action.role, action.same_as) for action in actions)


def _actions(steps: Sequence[Row], read_elements: ReadElements) -> list[ElementAction]:
    """Of each step its action; nothing where one of them is not of one element, or cannot be read."""
    actions: list[ElementAction] = []
    for place, step in enumerate(steps):
        read = _read(step, read_elements)
        if read is None or step["step_index"] != place:
            return []
        same = next((action.same_as for action in actions if action.text == read[2]), place)
        actions.append(ElementAction(*read, same))
    return actions


def _read(step: Row, read_elements: ReadElements) -> tuple[str, str, str] | None:
    """(kind, role, text) of a step's action."""
    try:
        action = json.loads(step["action"])
    except ValueError:
        return None
    kind = action.get("kind") if isinstance(action, dict) else None
    if kind == "type":
        return "type", "", str(action.get("text", ""))
    response = step["response"] or ""
    elements = read_elements(response, step["observation"] or "") if kind == "click" else ()
    if len(elements) != 1:
        return None
    name, role, number = elements[0]
    return None if _speaks_of_another(response, name) else (f"click {action.get('count', 1)}", role, name or f"[{number}]")


def _speaks_of_another(response: str, name: str) -> bool:
    """Whether an answer's thought quotes names, and not that of the element it acts on: an answer that nobody should learn."""
    quoted = [" ".join(text.split()) for text in _QUOTED.findall(response)]
    return bool(quoted) and name not in quoted


def _wording(instruction: str, actions: Sequence[ElementAction]) -> Wording | None:
    """None where no text, or one more than once, stands in the instruction."""
    places: list[tuple[int, int, int]] = []
    fixed: list[tuple[int, str]] = []
    for number, action in enumerate(actions):
        if action.same_as != number:
            continue
        found = [match.span() for match in re.finditer(rf"(?<!\w){re.escape(action.text)}(?!\w)", instruction)] if action.text else []
        if len(found) == 1:
            places.append((*found[0], number))
        elif found:
            return None
        else:
            fixed.append((number, action.text))
    places.sort()
    ends = [0, *(end for _, end, _ in places)]
    begins = [*(begin for begin, _, _ in places), len(instruction)]
    if not places or any(begin < end for begin, end in zip(begins, ends, strict=True)):
        return None
    parts = tuple(instruction[end:begin] for end, begin in zip(ends, begins, strict=True))
    return Wording(parts, tuple(number for _, _, number in places), tuple(fixed))
