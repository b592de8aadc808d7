"""Tasks of one to three short commands, for policies that are still small: plain sentences, and names that can be copied from them."""

from __future__ import annotations

from random import Random

from sandbox.tasks.data.draw import lines, text, things
from sandbox.terminal.tasks import Absent, Answers, Executable, Folder, Holds, Instance, Names, bash


def write_word(rng: Random) -> Instance:
    word, name = things(rng, 2)
    goal = Holds(path=f"{name}.txt", text=word)
    return Instance(
        instruction=f"Write the word {word} into the file {name}.txt.", goals=[goal], steps=[bash(f"echo {word} > {name}.txt", goal)]
    )


def append_word(rng: Random) -> Instance:
    word, name, *old = things(rng, 2 + rng.randint(1, 3))
    goal = Holds(path=f"{name}.txt", text=text([*old, word]))
    return Instance(
        instruction=f"Add the word {word} as a last line to the file {name}.txt.",
        files={f"{name}.txt": text(old)},
        goals=[goal],
        steps=[bash(f"echo {word} >> {name}.txt", goal)],
    )


def make_folder(rng: Random) -> Instance:
    (name,) = things(rng, 1)
    goal = Folder(path=name)
    return Instance(instruction=f"Make a folder named {name}.", goals=[goal], steps=[bash(f"mkdir {name}", goal)])


def copy_file(rng: Random) -> Instance:
    word, name, other = things(rng, 3)
    goal = Holds(path=f"{other}.txt", text=word)
    return Instance(
        instruction=f"Copy the file {name}.txt to {other}.txt.",
        files={f"{name}.txt": f"{word}\n"},
        goals=[goal, Holds(path=f"{name}.txt", text=word)],
        steps=[bash(f"cp {name}.txt {other}.txt", goal)],
    )


def rename_file(rng: Random) -> Instance:
    word, name, other = things(rng, 3)
    goal = Holds(path=f"{other}.txt", text=word)
    return Instance(
        instruction=f"Rename the file {name}.txt to {other}.txt.",
        files={f"{name}.txt": f"{word}\n"},
        goals=[goal, Absent(path=f"{name}.txt")],
        steps=[bash(f"mv {name}.txt {other}.txt", goal)],
    )


def delete_file(rng: Random) -> Instance:
    names = things(rng, rng.randint(2, 4))
    goal = Absent(path=f"{names[0]}.txt")
    return Instance(
        instruction=f"Delete the file {names[0]}.txt.",
        files={f"{name}.txt": f"{name}\n" for name in sorted(names)},
        goals=[goal, Names(path="", names=frozenset(f"{name}.txt" for name in names[1:]))],
        steps=[bash(f"rm {names[0]}.txt", goal)],
    )


def move_into_folder(rng: Random) -> Instance:
    word, name, folder = things(rng, 3)
    goal = Holds(path=f"{folder}/{name}.txt", text=word)
    return Instance(
        instruction=f"Move the file {name}.txt into the folder {folder}.",
        files={f"{name}.txt": f"{word}\n"},
        folders=[folder],
        goals=[goal, Absent(path=f"{name}.txt")],
        steps=[bash(f"mv {name}.txt {folder}", goal)],
    )


def allow_running(rng: Random) -> Instance:
    (name,) = things(rng, 1)
    goal = Executable(path=f"{name}.sh")
    return Instance(
        instruction=f"Make the file {name}.sh executable.",
        files={f"{name}.sh": f"#!/bin/bash\necho {name}\n"},
        goals=[goal],
        steps=[bash(f"chmod +x {name}.sh", goal)],
    )


def read_word(rng: Random) -> Instance:
    word, name = things(rng, 2)
    return Instance(
        instruction=f"Which word is in the file {name}.txt? Answer with it.",
        files={f"{name}.txt": f"{word}\n"},
        goals=[Answers(text=word)],
        steps=[bash(f"cat {name}.txt")],
        answer=word,
    )


def pass_word_on(rng: Random) -> Instance:
    word, name, other = things(rng, 3)
    goal = Holds(path=f"{other}.txt", text=f"{word}")
    return Instance(
        instruction=f"Write the last word of the file {name}.txt into {other}.txt.",
        files={f"{name}.txt": text([*things(rng, 2), word])},
        goals=[goal],
        steps=[bash(f"cat {name}.txt"), bash(f"echo {word} > {other}.txt", goal)],
    )


def count_lines(rng: Random) -> Instance:
    name, other = things(rng, 2)
    num = rng.randint(3, 30)
    goal = Holds(path=f"{other}.txt", text=str(num))
    return Instance(
        instruction=f"Count the lines of {name}.txt and write the number into {other}.txt.",
        files={f"{name}.txt": text(lines(rng, num, words=2))},
        goals=[goal],
        steps=[bash(f"wc -l {name}.txt"), bash(f"echo {num} > {other}.txt", goal)],
    )


def name_the_file(rng: Random) -> Instance:
    """Only the folder's listing shows which file it is."""
    wanted, *others = things(rng, 4)
    return Instance(
        instruction="One file here ends in csv. Answer with the word that it holds.",
        files={f"{name}.txt": f"{name}\n" for name in sorted(others)} | {f"{wanted}.csv": f"{others[0]}{wanted}\n"},
        goals=[Answers(text=f"{others[0]}{wanted}")],
        steps=[bash("ls"), bash(f"cat {wanted}.csv")],
        answer=f"{others[0]}{wanted}",
    )
