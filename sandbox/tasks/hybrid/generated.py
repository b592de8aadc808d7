"""Composed tasks with a page and a terminal: something is downloaded, or read in the page, worked on in the shell, and typed into the page
or uploaded to it. The questions are those of sandbox/tasks/data; here is what passes between page and shell.

    fetch-1 to 3    download data, ask it something, type the answer         note-1, 2    what the page shows, into files
    return-1 to 3   download data, make lines of it, upload them             type-1, 2    what files hold, into fields
    consult-1, 2    the page shows what to look for in a file                rounds-2, 3  the same, again and again; a code at the end
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from sandbox.hybrid.tasks import HybridInstance, PageStep, choose, click, fill, page_of, round_of, send
from sandbox.tasks.data import queries
from sandbox.tasks.data.draw import code, text, things
from sandbox.tasks.data.made import reference_of
from sandbox.tasks.data.queries import Condition
from sandbox.tasks.data.questions import Level, Question, pose
from sandbox.tasks.data.tables import Data, Format, draw_data
from sandbox.tasks.supply import Facts, Refusal, draw
from sandbox.tasks.task import Task
from sandbox.terminal.tasks import Holds, Instance, Present, Step, bash

FORMATS: tuple[Format, ...] = ("csv", "text", "log", "records", "list")
DOWNLOADS = "Downloads/"

_ANY: tuple[queries.Comparison, ...] = ("is", "is not", "is more than", "is less than")
TYPED: Mapping[int, Level] = {
    1: Level(packings=("plain",), comparisons=("is",), num_conditions=1, results=(queries.how_many,), num_rows=(8, 20), difficulty=0.25),
    2: Level(
        packings=("plain",),
        comparisons=_ANY,
        num_conditions=1,
        results=(queries.total, queries.extreme, queries.num_distinct),
        num_rows=(20, 50),
        difficulty=0.45,
        fewest=3,
    ),
    3: Level(
        packings=("plain",),
        comparisons=_ANY,
        num_conditions=2,
        results=(queries.total, queries.most_common, queries.top),
        num_rows=(60, 120),
        difficulty=0.65,
        fewest=4,
    ),
}
"""Answers of one word, to be typed."""
UPLOADED: Mapping[int, Level] = {
    1: replace(TYPED[1], results=(queries.listed,), difficulty=0.35),
    2: replace(TYPED[2], results=(queries.distinct, queries.ranked), difficulty=0.55),
    3: replace(TYPED[3], results=(queries.grouped, queries.ranked), difficulty=0.75),
}
"""Answers of several lines, to be uploaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A candidate."""

    instance: HybridInstance
    content: Mapping[str, Any]
    difficulty: float
    provenance: Mapping[str, str]


def _made(instance: HybridInstance, content: Mapping[str, Any], difficulty: float, **provenance: str) -> Made:
    whole = {"instruction": instance.work.instruction, **content}
    return Made(instance=instance, content=whole, difficulty=difficulty, provenance=provenance)


def _data_question(rng: Random, level: Level, *, folder: str = "") -> tuple[Data, str, Question] | Refusal:
    """Data, its file's content, and what is asked of it."""
    data = draw_data(rng, FORMATS, level.packings, rng.randint(*level.num_rows), folder=folder)
    question = pose(rng, data, level)
    (content,) = data.files.values()
    return question if isinstance(question, Refusal) else (data, str(content), question)


def _origin(number: int, data: Data, question: Question, way: str) -> dict[str, str]:
    operations = " → ".join([*question.operations, way])
    return {"subject": data.subject.name, "format": data.format, "operations": operations, "level": str(number)}


def fetch(rng: Random, number: int) -> Made | Refusal:
    """Downloaded, asked, typed."""
    drawn = _data_question(rng, TYPED[number], folder=DOWNLOADS)
    if isinstance(drawn, Refusal):
        return drawn
    data, content, question = drawn
    (path,), (answer,) = data.files, question.answer
    name = path.removeprefix(DOWNLOADS)
    steps: list[Step | PageStep] = [
        click(name, role="link", goal=Present(path=path)),
        bash(data.look),
        bash(question.command),
        *fill(0, answer),
        send(),
    ]
    work = Instance(
        instruction=f"Download {name} from the page; it comes into the folder Downloads. {data.about} {question.filters} Type "
        f"{question.result.words} into the field Answer, and press Send.",
        goals=[Holds(path=path, text=content)],
        steps=[],
    )
    page = page_of("Question", [round_of([], fields={"Answer": answer}, download={"name": name, "text": content})])
    instance = HybridInstance(work=work, page=page, steps=steps)
    return _made(instance, question.content, TYPED[number].difficulty, **_origin(number, data, question, "type"))


def give_back(rng: Random, number: int) -> Made | Refusal:
    """Downloaded, made into lines, uploaded."""
    drawn = _data_question(rng, UPLOADED[number], folder=DOWNLOADS)
    if isinstance(drawn, Refusal):
        return drawn
    data, content, question = drawn
    (path,), result = data.files, f"{things(rng, 1)[0]}.txt"
    name = path.removeprefix(DOWNLOADS)
    goal = Holds(path=result, text="\n".join(question.answer))
    steps: list[Step | PageStep] = [
        click(name, role="link", goal=Present(path=path)),
        bash(data.look),
        bash(f"{question.command} > {result}", goal),
        choose(result),
        send(),
    ]
    layout = " (a line each, sorted by name: the name, a space, the number)" if " by group" in question.result.name else ""
    work = Instance(
        instruction=f"Download {name} from the page; it comes into the folder Downloads. {data.about} {question.filters} Write "
        f"{question.result.words}{layout} into {result}, and upload that file in the page: click on the file button, type its name, and "
        "press Send.",
        goals=[goal],
        steps=[],
    )
    shown = round_of([], upload={"name": result, "text": text(question.answer)}, download={"name": name, "text": content})
    instance = HybridInstance(work=work, page=page_of("Return", [shown]), steps=steps)
    return _made(instance, question.content, UPLOADED[number].difficulty, **_origin(number, data, question, "upload"))


def consult(rng: Random, number: int) -> Made | Refusal:
    """Only the page says which value is looked for."""
    drawn = _data_question(rng, replace(TYPED[number], comparisons=("is", "is more than")))
    if isinstance(drawn, Refusal):
        return drawn
    data, content, question = drawn
    (path,), (answer,), (condition,) = data.files, question.answer, question.conditions
    steps: list[Step | PageStep] = [bash(data.look), bash(question.command), *fill(0, answer), send()]
    work = Instance(
        instruction=f"{data.about} Take the rows where {condition.column.name} {condition.comparison} the value that the page shows. Type "
        f"{question.result.words} into the field Answer, and press Send.",
        files={path: content},
        goals=[Holds(path=path, text=content)],
        steps=[],
    )
    page = page_of("Value", [round_of([condition.value], fields={"Answer": answer})])
    instance = HybridInstance(work=work, page=page, steps=steps)
    shown = {**question.content, "shown": condition.value}
    return _made(instance, shown, TYPED[number].difficulty - 0.05, **_origin(number, data, question, "type"))


def rounds(rng: Random, num: int) -> Made | Refusal:
    """Each round the page shows another value; after the last one it shows a code, which goes into a file."""
    data = draw_data(rng, FORMATS, ("plain",), rng.randint(30, 60))
    column = rng.choice([column for column in data.columns if not column.is_number])
    result = queries.total(rng, data)
    values = rng.sample(column.values, num)
    conditions = [Condition(column=column, comparison="is", value=value) for value in values]
    answers: list[str] = []
    for condition in conditions:
        rows = queries.passing(data, [condition])
        if isinstance(rows, Refusal):
            return rows
        summed = result.compute(queries.pick(data, rows, result.columns))
        if isinstance(summed, Refusal):
            return summed
        answers += summed
    (path, content), final, target = *data.files.items(), code(rng), f"{things(rng, 1)[0]}.txt"
    goal = Holds(path=target, text=final)
    steps: list[Step | PageStep] = [bash(data.look)]
    for index, (condition, answer) in enumerate(zip(conditions, answers, strict=True)):
        asked = bash(queries.command(data, [condition], result))
        steps += [asked, *fill(0, answer, round_number=index), send(round_number=index)]
    work = Instance(
        instruction=f"{data.about} The page shows a {column.name}. Type {result.words.replace('their', 'the')} of the rows with that "
        f"{column.name} into the field Sum, and press Send; then the page shows the next one, {num} in all. After the last it shows a "
        f"code: write it into {target}.",
        files={path: content},
        goals=[goal],
        steps=[],
    )
    shown = [round_of([value], fields={"Sum": answer}) for value, answer in zip(values, answers, strict=True)]
    instance = HybridInstance(
        work=work, page=page_of("Rounds", shown, receipt=final), steps=[*steps, bash(f"echo {final} > {target}", goal)]
    )
    asked_of = {"data": path, "values": values, "answers": answers, "code": final}
    return _made(
        instance,
        asked_of,
        0.5 + 0.12 * num,
        subject=data.subject.name,
        format=data.format,
        level=str(num + 1),
        operations=" → ".join(["gather plain", *["filter is", result.name, "type"] * num, "write text"]),
    )


def note(rng: Random, num: int) -> Made | Refusal:
    """What the page shows, into files: of two codes each is named by the word before it."""
    names, labels = things(rng, num), things(rng, num)
    words = [code(rng, 3) for _ in range(num)]
    goals = [Holds(path=f"{name}.txt", text=word) for name, word in zip(names, words, strict=True)]
    if num == 1:
        shown, text = [words[0]], f"The page shows a code. Write it into the file {names[0]}.txt."
    else:
        shown = [f"{label} {word}" for label, word in zip(labels, words, strict=True)]
        text = "The page shows words with codes. " + " ".join(
            f"Write the code of {label} into the file {name}.txt." for label, name in zip(labels, names, strict=True)
        )
        rng.shuffle(shown)
    steps = [bash(f"echo {word} > {goal.path}", goal) for word, goal in zip(words, goals, strict=True)]
    instance = HybridInstance(
        work=Instance(instruction=text, goals=goals, steps=[]), page=page_of("Codes", [round_of(shown)]), needs_page=False, steps=steps
    )
    return _made(instance, {"codes": words}, 0.05 * num, operations=" → ".join(["read page", *["write"] * num]), level="1")


def type_in(rng: Random, num: int) -> Made | Refusal:
    """What files hold, into fields."""
    words, labels = things(rng, num), ("Word", "Second word")[:num]
    files = [f"{name}.{rng.choice(('txt', 'md', 'csv', 'log', 'cfg'))}" for name in things(rng, num)]
    text = " ".join(f"Type the word that is in the file {file} into the field {label}." for file, label in zip(files, labels, strict=True))
    steps: list[Step | PageStep] = []
    for at, (file, word) in enumerate(zip(files, words, strict=True)):
        steps += [bash(f"cat {file}"), *fill(at, word)]
    instance = HybridInstance(
        work=Instance(
            instruction=f"{text} Then press Send.",
            goals=[],
            steps=[],
            files={file: f"{word}\n" for file, word in zip(files, words, strict=True)},
        ),
        page=page_of("Words", [round_of([], fields=dict(zip(labels, words, strict=True)))]),
        steps=[*steps, send()],
    )
    return _made(instance, {"words": words}, 0.1 * num, operations=" → ".join(["read file", "type"] * num), level="1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    make: Callable[[Random], Made | Refusal]
    max_steps: int


_LARGE = {
    **{f"fetch-{number}": Family(make=partial(fetch, number=number), max_steps=12) for number in TYPED},
    **{f"return-{number}": Family(make=partial(give_back, number=number), max_steps=12) for number in UPLOADED},
    **{f"consult-{number}": Family(make=partial(consult, number=number), max_steps=10) for number in (1, 2)},
    **{f"rounds-{num}": Family(make=partial(rounds, num=num), max_steps=8 + 5 * num) for num in (2, 3)},
}
_SMALL = {
    **{f"note-{num}": Family(make=partial(note, num=num), max_steps=3 + 2 * num) for num in (1, 2)},
    **{f"type-{num}": Family(make=partial(type_in, num=num), max_steps=5 + 4 * num) for num in (1, 2)},
}
FAMILIES: Mapping[str, Family] = {**_LARGE, **_SMALL}
GROUPS: Mapping[str, tuple[str, ...]] = {"generated": tuple(_LARGE), "generated-small": tuple(_SMALL)}


def composed(task: Task, seed: int) -> tuple[Made, dict[str, int]]:
    """An instance of a family, and how many candidates were refused before it, by reason. Raises TaskError."""
    return draw(task, seed, FAMILIES[task.name].make)


def composed_facts(task: Task, seed: int) -> Facts:
    made, dropped = composed(task, seed)
    return Facts(
        instruction=made.instance.work.instruction,
        content=made.content,
        difficulty=round(made.difficulty, 3),
        provenance=made.provenance,
        dropped=dropped,
        reference=reference_of(made.instance.work, _typed(made.instance.page)),
    )


def _typed(page: Mapping[str, Any]) -> list[str]:
    """What the page wants to be sent, for a judge."""
    return [
        f"the page was sent {field['wanted']!r} in the field {field['name']!r}" for shown in page["rounds"] for field in shown["fields"]
    ] + [f"the page was sent the file {shown['upload']['name']!r}" for shown in page["rounds"] if shown["upload"]]
