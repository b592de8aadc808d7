"""Families that rearrange a tree of files: a chain of operations, each on files of an ending of its own, so that none undoes another. What
must be there in the end is worked out on a model of the tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from sandbox.tasks.data.draw import things
from sandbox.tasks.data.made import Made
from sandbox.tasks.supply import Refusal
from sandbox.terminal.tasks import Absent, Every, Goal, Holds, Instance, Mode, Names, Prints, Step, bash

ENDINGS = ("log", "txt", "csv", "md", "cfg", "bak", "tmp", "sh")
NUM_FILES = {1: 6, 2: 12, 3: 18, 4: 24}


@dataclass(slots=True, kw_only=True)
class _Tree:
    """The model: what is there before (`files`: path → content), and what an operation is about."""

    files: dict[str, str]
    words: list[str]
    """Unused so far, for names."""

    def of(self, ending: str) -> list[str]:
        return sorted(path for path in self.files if path.endswith(f".{ending}"))

    def word(self) -> str:
        return self.words.pop()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """An operation: in words, as a command, and what holds after it. `touched` are paths that it leaves elsewhere or nowhere."""

    name: str
    words: str
    command: str
    goals: tuple[Goal, ...]
    touched: tuple[str, ...] = ()


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _in_folder(tree: _Tree, folder: str, paths: list[str]) -> tuple[Goal, ...]:
    held = (Holds(path=f"{folder}/{_name(path)}", text=tree.files[path]) for path in paths)
    return (Names(path=folder, names=frozenset(map(_name, paths))), *held)


def _move(rng: Random, tree: _Tree, ending: str) -> _Done:
    folder, paths = tree.word(), tree.of(ending)
    return _Done(
        name="move",
        words=f"Move every file that ends in .{ending}, wherever it is, into a new folder {folder}.",
        command=f"mkdir -p {folder} && find . -name '*.{ending}' -not -path './{folder}/*' -exec mv {{}} {folder} \\;",
        goals=(*_in_folder(tree, folder, paths), *(Absent(path=path) for path in paths)),
        touched=tuple(paths),
    )


def _copy(rng: Random, tree: _Tree, ending: str) -> _Done:
    folder, paths = tree.word(), tree.of(ending)
    return _Done(
        name="copy",
        words=f"Copy every file that ends in .{ending}, wherever it is, into a new folder {folder}.",
        command=f"mkdir -p {folder} && find . -name '*.{ending}' -not -path './{folder}/*' -exec cp {{}} {folder} \\;",
        goals=_in_folder(tree, folder, paths),
    )


def _delete(rng: Random, tree: _Tree, ending: str) -> _Done:
    paths = tree.of(ending)
    return _Done(
        name="delete",
        words=f"Delete every file that ends in .{ending}, wherever it is.",
        command=f"find . -name '*.{ending}' -delete",
        goals=tuple(Absent(path=path) for path in paths),
        touched=tuple(paths),
    )


def _delete_with(rng: Random, tree: _Tree, ending: str) -> _Done:
    """Only those that hold a word."""
    paths = tree.of(ending)
    word = tree.files[rng.choice(paths)].split()[0]
    gone = [path for path in paths if word in tree.files[path].split()]
    return _Done(
        name="delete by content",
        words=f"Delete every file that ends in .{ending} and has the word {word} in it.",
        command=f"grep -rlw --include='*.{ending}' {word} . | xargs -r rm",
        goals=tuple(Absent(path=path) for path in gone),
        touched=tuple(gone),
    )


def _rename(rng: Random, tree: _Tree, ending: str) -> _Done:
    new, paths = rng.choice(["old", "done", "part", "copy"]), tree.of(ending)
    renamed = (Holds(path=f"{path.removesuffix(ending)}{new}", text=tree.files[path]) for path in paths)
    return _Done(
        name="rename",
        words=f"Rename every file that ends in .{ending}, wherever it is, so that it ends in .{new} instead.",
        command=f"find . -name '*.{ending}' -exec sh -c 'mv \"$1\" \"${{1%.{ending}}}.{new}\"' _ {{}} \\;",
        goals=(*renamed, *(Absent(path=path) for path in paths)),
        touched=tuple(paths),
    )


def _permit(rng: Random, tree: _Tree, ending: str) -> _Done:
    mode, who = rng.choice(
        (
            (0o600, "can be read and written by its owner and used by nobody else"),
            (0o444, "can be read by everyone and written by nobody"),
            (0o755, "can be read and run by everyone and written by its owner"),
        )
    )
    return _Done(
        name="permissions",
        words=f"See to it that every file that ends in .{ending}, wherever it is, {who}.",
        command=f"find . -name '*.{ending}' -exec chmod {mode:o} {{}} +",
        goals=tuple(Mode(path=path, mode=mode) for path in tree.of(ending)),
    )


def _list(rng: Random, tree: _Tree, ending: str) -> _Done:
    target, names = tree.word(), sorted(map(_name, tree.of(ending)))
    return _Done(
        name="list",
        words=f"Write the names of all files that end in .{ending}, without their folders, in alphabetical order into {target}.",
        command=f"find . -name '*.{ending}' | sed 's|.*/||' | LC_ALL=C sort > {target}",
        goals=(Holds(path=target, text="\n".join(names)),),
    )


def _pack(rng: Random, tree: _Tree, ending: str) -> _Done:
    archive, paths = f"{tree.word()}.tar.gz", tree.of(ending)
    shown = Prints(command=f"tar -tzf {archive} | grep -v '/$' | sed 's|^[.]/||' | LC_ALL=C sort", text="\n".join(paths))
    sums = Prints(command=f"tar -xzOf {archive} | LC_ALL=C sort", text="\n".join(sorted(tree.files[path] for path in paths)))
    return _Done(
        name="pack",
        words=f"Pack all files that end in .{ending}, with their folders, into the archive {archive}, and leave them where they are.",
        command=f"find . -name '*.{ending}' | tar -czf {archive} -T -",
        goals=(shown, sums),
    )


OPERATIONS: tuple[Callable[[Random, _Tree, str], _Done], ...] = (_move, _copy, _delete, _delete_with, _rename, _permit, _list, _pack)


def rearrange(rng: Random, level: int) -> Made | Refusal:
    """A candidate with as many operations as its level."""
    tree = _draw_tree(rng, NUM_FILES[level])
    endings = [ending for ending in ENDINGS if len(tree.of(ending)) >= (1 if level == 1 else 2)]
    if len(endings) < level:
        return Refusal("too few kinds of files")
    before = dict(tree.files)
    chosen = zip(rng.sample(OPERATIONS, level), rng.sample(endings, level), strict=True)
    done = [operation(rng, tree, ending) for operation, ending in chosen]
    if any(len(each.goals) < 1 for each in done):
        return Refusal("an operation changes nothing")
    touched = {path for each in done for path in each.touched}
    kept = [Holds(path=path, text=content) for path, content in sorted(before.items()) if path not in touched]
    steps: list[Step] = [bash("find . -type f"), *(bash(each.command, Every(goals=each.goals)) for each in done)]
    text = " ".join([*(each.words for each in done), "Leave all other files as they are."])
    return Made(
        instance=Instance(
            instruction=text,
            files={path: f"{content}\n" for path, content in before.items()},
            modes=dict.fromkeys(before, 0o640),
            goals=[*(goal for each in done for goal in each.goals), *kept],
            steps=steps,
        ),
        content={"instruction": text, "files": before},
        difficulty=min(0.1 + 0.2 * level, 1.0),
        provenance={"operations": " → ".join(each.name for each in done), "files": str(len(before)), "level": str(level)},
    )


def _draw_tree(rng: Random, num: int) -> _Tree:
    words = things(rng, 80)
    folders = ["", *(f"{words.pop()}/" for _ in range(2)), *(f"{words.pop()}/{words.pop()}/" for _ in range(2))]
    said = things(rng, 12)
    files = {f"{rng.choice(folders)}{words.pop()}.{rng.choice(ENDINGS[:5])}": " ".join(rng.sample(said, 3)) for _ in range(num)}
    return _Tree(files=files, words=words)
