"""Families for policies that are still small: one to three short commands, each asked for in a plain sentence of its own, with names that
are copied from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from sandbox.tasks.data.draw import lines, text, things
from sandbox.tasks.data.made import Made
from sandbox.tasks.supply import Refusal
from sandbox.terminal.tasks import Absent, Every, Executable, Folder, Goal, Holds, Instance, bash


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """One sentence, the command that does it, what holds then; and what has to be there before."""

    words: str
    command: str
    goals: tuple[Goal, ...]
    files: dict[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()


ENDINGS = ("txt", "md", "csv", "log", "cfg")


def _file(rng: Random, names: list[str]) -> str:
    return f"{names.pop()}.{rng.choice(ENDINGS)}"


def _write(rng: Random, names: list[str]) -> _Order:
    word, file = names.pop(), _file(rng, names)
    goal = Holds(path=file, text=word)
    return _Order(words=f"Write the word {word} into the file {file}.", command=f"echo {word} > {file}", goals=(goal,))


def _append(rng: Random, names: list[str]) -> _Order:
    word, old, file = names.pop(), names.pop(), _file(rng, names)
    return _Order(
        words=f"Add the word {word} as a last line to the file {file}.",
        command=f"echo {word} >> {file}",
        goals=(Holds(path=file, text=text([old, word])),),
        files={file: f"{old}\n"},
    )


def _copy(rng: Random, names: list[str]) -> _Order:
    word, file, other = names.pop(), _file(rng, names), _file(rng, names)
    return _Order(
        words=f"Copy the file {file} to {other}.",
        command=f"cp {file} {other}",
        goals=(Holds(path=other, text=word), Holds(path=file, text=word)),
        files={file: f"{word}\n"},
    )


def _rename(rng: Random, names: list[str]) -> _Order:
    word, file, other = names.pop(), _file(rng, names), _file(rng, names)
    return _Order(
        words=f"Rename the file {file} to {other}.",
        command=f"mv {file} {other}",
        goals=(Holds(path=other, text=word), Absent(path=file)),
        files={file: f"{word}\n"},
    )


def _delete(rng: Random, names: list[str]) -> _Order:
    """Of two files that are called alike but for the ending."""
    name, word = names.pop(), names.pop()
    gone, kept = rng.sample(ENDINGS, 2)
    return _Order(
        words=f"Delete the file {name}.{gone} but not {name}.{kept}.",
        command=f"rm {name}.{gone}",
        goals=(Absent(path=f"{name}.{gone}"), Holds(path=f"{name}.{kept}", text=word)),
        files={f"{name}.{gone}": f"{word}\n", f"{name}.{kept}": f"{word}\n"},
    )


def _folder(rng: Random, names: list[str]) -> _Order:
    name, inner = names.pop(), names.pop()
    return _Order(
        words=f"Make a folder named {inner} in the folder {name}.",
        command=f"mkdir {name}/{inner}",
        goals=(Folder(path=f"{name}/{inner}"),),
        folders=(name,),
    )


def _move(rng: Random, names: list[str]) -> _Order:
    word, folder, file = names.pop(), names.pop(), _file(rng, names)
    return _Order(
        words=f"Move the file {file} into the folder {folder}.",
        command=f"mv {file} {folder}",
        goals=(Holds(path=f"{folder}/{file}", text=word), Absent(path=file)),
        files={file: f"{word}\n"},
        folders=(folder,),
    )


def _allow(rng: Random, names: list[str]) -> _Order:
    word, folder, name = names.pop(), names.pop(), names.pop()
    path = f"{folder}/{name}.sh"
    return _Order(
        words=f"Make the file {path} executable.",
        command=f"chmod +x {path}",
        goals=(Executable(path=path),),
        files={path: f"#!/bin/bash\necho {word}\n"},
    )


ORDERS: tuple[Callable[[Random, list[str]], _Order], ...] = (_write, _append, _copy, _rename, _delete, _folder, _move, _allow)


def orders(rng: Random, num: int) -> Made | Refusal:
    """So many different commands, one after another."""
    names = things(rng, 3 * num + 6)
    given = [order(rng, names) for order in rng.sample(ORDERS, num)]
    words = given[0].words + "".join(f" Then {order.words[0].lower()}{order.words[1:]}" for order in given[1:])
    bystander = {f"{names.pop()}.txt": f"{names.pop()}\n" for _ in range(2)}
    files = {path: content for order in given for path, content in order.files.items()} | bystander
    goals = [goal for order in given for goal in order.goals]
    kept = [Holds(path=path, text=content) for path, content in bystander.items()]
    return Made(
        instance=Instance(
            instruction=words,
            files=dict(sorted(files.items())),
            folders=[folder for order in given for folder in order.folders],
            goals=[*goals, *kept],
            steps=[bash(order.command, Every(goals=order.goals)) for order in given],
        ),
        content={"instruction": words},
        difficulty=0.05 * num,
        provenance={"operations": " → ".join(order.command.split()[0] for order in given), "level": str(num)},
    )


def text_lines(rng: Random, num: int) -> Made | Refusal:
    """Some of a file's lines, or a fact about them, into another file; then the same from that one."""
    names = things(rng, num + 1)
    files = [f"{name}.txt" for name in names]
    word = rng.choice(("red", "blue", "green"))
    current = [f"{line} {rng.choice(('red', 'blue', 'green'))}" for line in lines(rng, rng.randint(4, 9), words=1)]
    content, before = {"lines": list(current)}, text(current)
    kinds = [*rng.sample(("first", "last", "sorted", "with"), num - 1), rng.choice(("first", "last", "sorted", "with", "count"))]
    sentences, steps, goals, done = [], [], [], []
    for kind, source, target in zip(kinds, files, files[1:], strict=False):
        words, command, result = {
            "first": (f"the first line of {source}", f"head -n 1 {source}", current[:1]),
            "last": (f"the last line of {source}", f"tail -n 1 {source}", current[-1:]),
            "sorted": (f"the lines of {source} in alphabetical order", f"sort {source}", sorted(current)),
            "with": (f"the lines of {source} with the word {word}", f"grep {word} {source}", [line for line in current if word in line]),
            "count": (f"the number of lines of {source}", f"wc -l < {source}", [str(len(current))]),
        }[kind]
        if not result or (kind != "count" and result == current):
            return Refusal("an operation changes nothing")
        goal = Holds(path=target, text=text(result))
        sentences.append(f"Write {words} into {target}.")
        steps.append(bash(f"{command} > {target}", goal))
        goals.append(goal)
        done.append(kind)
        current = result
    instruction = sentences[0] + "".join(f" Then {sentence[0].lower()}{sentence[1:]}" for sentence in sentences[1:])
    return Made(
        instance=Instance(instruction=instruction, files={files[0]: before}, goals=goals, steps=steps),
        content={"instruction": instruction, **content},
        difficulty=0.05 + 0.05 * num,
        provenance={"operations": " → ".join(done), "level": str(num)},
    )
