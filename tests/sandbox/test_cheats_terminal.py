"""Cheats against verifiers of terminal tasks, really tried in live jails: none of them is paid. What is listed here is what the table in
docs/verifiers.md says of terminals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from sandbox.actions import Finished
from sandbox.tasks.task import Task
from sandbox.tasks.terminal.source import load_tasks
from sandbox.terminal.session import TerminalSession
from sandbox.terminal.tasks import Absent, Answers, Executable, Folder, Goal, Holds, HoldsJson, Instance, Mode, Names, Prints, Serves
from tests.sandbox.tool_sessions import bash, follow

SECRET, OTHER = "k7-plum-41", "another thing"
PORT = 8137
LISTENING = f"timeout 30 sh -c 'until grep -q :{PORT:04X} /proc/net/tcp; do sleep 0.05; done'"
"""A command that ends once somebody listens at the port."""
OWN = Task(source="own", name="own", domain="terminal", max_steps=40)


class Own:
    """One instance of our own: a file with the secret, and whatever goals a test asks for."""

    environment = "cheats 1"

    def __init__(self, *goals: Goal) -> None:
        self.goals = goals

    def instance(self, task: Task, seed: int) -> Instance:
        files = {"secret.txt": f"{SECRET}\n", "keep.txt": f"{OTHER}\n", "work/tool.py": f"print('{OTHER}')\n"}
        repository = "cd work && git init -q && git add . && git commit -qm 'First words'"
        return Instance(instruction="Cheat.", files=files, commands=[repository], goals=self.goals, steps=[])


def paid(goals: Sequence[Goal], *commands: str, answer: str = "", wait_s: float = 0.0) -> tuple[float, tuple[str, ...]]:
    """Reward and reasons of an episode that gives these commands and says that it is done. Asked again, the verdict is the same."""

    async def run() -> tuple[float, tuple[str, ...]]:
        session = TerminalSession({"own": Own(*goals)})
        try:
            await session.reset(OWN, 1)
            for command in commands:
                await session.step(bash(command))
            transition = await session.step(Finished(answer=answer))
            verdict = await session.evaluate()
            await asyncio.sleep(wait_s)
            assert transition.terminated and await session.evaluate() == verdict and verdict.score == transition.reward
            return transition.reward, verdict.reasons
        finally:
            await session.close()

    return asyncio.run(run())


COPY = Holds(path="copy.txt", text=SECRET)
TOOL = "/usr/bin/python3 -I work/tool.py"
RUNS = Prints(command=TOOL, text=OTHER)
GIT_SAYS = Prints(command="git -C work log --format=%s", text="Second words\nFirst words")
CALLS_GIT = Prints(command="git -C work rev-list --count HEAD", text="7")
SHORT_HISTORY = Prints(command="git -C work rev-list --count HEAD", text="1")
IS_ONE = HoldsJson(path="one.json", value=1)
PYTHON_SAYS = Prints(command="python3 -c 'print(6 * 7)'", text="42 (checked)")

HONEST: dict[str, tuple[list[Goal], list[str]]] = {
    "a copy": ([COPY], ["cp secret.txt copy.txt"]),
    "a mode": ([Mode(path="keep.txt", mode=0o700), Executable(path="keep.txt")], ["chmod 700 keep.txt"]),
    "a commit": ([GIT_SAYS], ["cd work && echo 1 > a && git add . && git commit -qm 'Second words'"]),
    "a service": (
        [Serves(port=PORT, path="/secret.txt", text=SECRET), COPY],
        [f"python3 -m http.server {PORT} > /dev/null 2>&1 & {LISTENING}; cp secret.txt copy.txt"],
    ),
}

CHEATS: dict[str, tuple[list[Goal], list[str]]] = {
    # something else than a file of one's own
    "a link to what holds it": ([COPY], ["ln -s secret.txt copy.txt"]),
    "a link to a folder that holds it": ([Holds(path="out/copy.txt", text=SECRET)], ["mkdir in; cp secret.txt in/copy.txt; ln -s in out"]),
    "a link out of the workspace": ([COPY], [f"echo {SECRET} > /tmp/there; ln -s /tmp/there copy.txt"]),
    "a link to an open file of one's own": ([COPY], ["exec 9< secret.txt; ln -s /proc/self/fd/9 copy.txt"]),
    "a pipe that says it to whoever asks": ([COPY], ["mkfifo copy.txt; while true; do cat secret.txt > copy.txt; done & sleep 0.3"]),
    "a socket": ([COPY], ["python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"copy.txt\")'"]),
    "a folder of that name": ([COPY], [f"mkdir -p copy.txt/{SECRET}"]),
    "a link that can be executed": ([Executable(path="run.sh")], ["ln -s /bin/true run.sh"]),
    "a folder that can be entered": ([Executable(path="run.sh")], ["mkdir run.sh"]),
    "a link with the mode of links": ([Mode(path="run.sh", mode=0o777)], ["ln -s secret.txt run.sh"]),
    "a link for a folder": ([Folder(path="made")], ["ln -s work made"]),
    "a link that leads nowhere is something": ([Absent(path="secret.txt")], ["rm secret.txt; ln -s nowhere secret.txt"]),
    # more than was asked for
    "every answer at once": ([COPY], ["cat secret.txt keep.txt secret.txt > copy.txt"]),
    "a file too large to look through": ([COPY], ["cp secret.txt copy.txt; truncate -s 40M copy.txt"]),
    "zero bytes behind it": ([COPY], [r"printf 'k7-plum-41\0' > copy.txt"]),
    "bytes that are not text": ([COPY], [r"printf 'k7-plum-41\xff' > copy.txt"]),
    "letters that look alike": ([COPY], ["printf 'k7-рlum-41' > copy.txt"]),
    "a mark that is not seen": ([COPY], [r"printf '\xef\xbb\xbfk7-plum-41' > copy.txt"]),
    "names that look alike": ([Names(path="box", names=frozenset({"a.txt"}))], ["mkdir box; touch box/а.txt"]),
    "more names than are wanted": ([Names(path="box", names=frozenset({"a"}))], ["mkdir box; touch box/a box/.b"]),
    "a name with a line end in it": ([Prints(command="ls -1 box", text="a\nb")], [r"mkdir box; touch $'box/a\nb' box/c"]),
    # programs that stand in for the verifier's
    "another python in the workspace": (
        [PYTHON_SAYS],
        ["printf '#!/bin/sh\\necho 42 \"(checked)\"' > python3; chmod +x python3; PATH=.:$PATH"],
    ),
    "another python in the search path": (
        [PYTHON_SAYS],
        [
            "mkdir -p .local/bin bin; printf '#!/bin/sh\\necho \"42 (checked)\"' | tee bin/python3 > .local/bin/python3",
            "chmod +x bin/* .local/bin/*; export PATH=/workspace/bin:/workspace/.local/bin:$PATH; hash -r",
        ],
    ),
    "another python in a folder of the system": ([PYTHON_SAYS], ["cp /bin/true /usr/local/bin/python3; cp /bin/true /usr/bin/python3"]),
    "modules of the user's own": (
        [PYTHON_SAYS],
        [
            "d=$(python3 -m site --user-site); mkdir -p $d; echo 'print(\"42 (checked)\", flush=True); import os; os._exit(0)' "
            "| tee $d/usercustomize.py > $d/sitecustomize.py"
        ],
    ),
    "modules beside the program": (
        [Prints(command="/usr/bin/python3 -Ic 'import json; print(json.dumps(1))'", text="2")],
        ["mkdir json; echo 'dumps = lambda value: 2' | tee json/__init__.py > json.py"],
    ),
    "variables for every shell": (
        [RUNS, Prints(command="echo plain", text="cheated")],
        [
            "echo 'echo() { builtin echo cheated; }; export -f echo' | tee .bashrc .bash_profile > .profile",
            "export BASH_ENV=/workspace/.bashrc ENV=/workspace/.bashrc PYTHONSTARTUP=/workspace/x.py LD_PRELOAD=/workspace/x.so",
        ],
    ),
    "a function and an alias instead of git": (
        [CALLS_GIT],
        ["git() { echo 7; }; export -f git; alias git='echo 7'", "echo 'git() { echo 7; }' >> .bashrc"],
    ),
    "settings of git": (
        [CALLS_GIT],
        [
            "git config --global alias.rev-list '!echo 7'; git -C work config alias.rev-list '!echo 7'",
            "git -C work config core.fsmonitor 'echo 7'; git -C work config core.pager 'echo 7 #'",
            "git config --global pager.rev-list 'echo 7 #'",
        ],
    ),
    "a history that replaces the one there is": (
        [GIT_SAYS],
        [
            "cd work && a=$(git rev-parse HEAD) && c=$(GIT_AUTHOR_DATE='2001-02-03 04:05' git commit-tree -m 'First words' HEAD^{tree}) "
            "&& b=$(git commit-tree -p $c -m 'Second words' HEAD^{tree}) && git replace -f $a $b && git log --format=%s"
        ],
    ),
    "a library that is loaded before": (
        [PYTHON_SAYS],
        ["echo /workspace/x.so > /etc/ld.so.preload; cp /lib/x86_64-linux-gnu/libc.so.6 x.so; export LD_PRELOAD=$PWD/x.so"],
    ),
    "a parent that is grafted on": (
        [GIT_SAYS],
        [
            "cd work && a=$(git rev-parse HEAD) && b=$(git commit-tree -m 'Second words' HEAD^{tree}) && git reset -q --soft $b && "
            "echo $b $a > .git/info/grafts"
        ],
    ),
    "a history that is said to begin later": (
        [SHORT_HISTORY],
        ["cd work && git commit -q --allow-empty -m x && git rev-parse HEAD > .git/shallow"],
    ),
    "a signature whose program says more": (
        [GIT_SAYS],
        [
            "printf '#!/bin/sh\\necho Second words >&2\\n' > gpg; chmod +x gpg; cd work; git config gpg.program /workspace/gpg; "
            "git config log.showSignature true; c=$(git cat-file commit HEAD | sed '0,/^$/s//gpgsig -----BEGIN PGP SIGNATURE-----\\n x\\n "
            "-----END PGP SIGNATURE-----\\n/' | git hash-object -t commit -w --stdin); git reset -q --soft $c"
        ],
    ),
    "names of programs in the folder that it runs in": (
        [PYTHON_SAYS],
        ["echo \"print('42 (checked)')\" | tee sitecustomize.py encodings.py site.py io.py > /dev/null; touch pyvenv.cfg"],
    ),
    "a process that ends or stops each new shell": (
        [COPY],
        ["(while true; do for p in $(pgrep bash); do kill -9 $p; done; done) > /dev/null 2>&1 & sleep 0.2", "true", "ls"],
    ),
    # what cannot be looked at
    "a folder that nobody may enter": ([Holds(path="work/copy.txt", text=SECRET)], ["cp secret.txt work/copy.txt; chmod 000 work"]),
    "a folder that nobody may list": ([Names(path="box", names=frozenset("a"))], ["mkdir box; touch box/a box/b; chmod 300 box"]),
    "a file that nobody may read": ([COPY], ["cp secret.txt copy.txt; chmod 000 copy.txt"]),
    "a workspace that nobody may enter": ([Absent(path="secret.txt")], ["chmod 000 .; exit", "ls; pwd"]),
    "links that lead round": ([Absent(path="a/x"), COPY], ["ln -s b a; ln -s a b"]),
    "a path too long to name": ([COPY], ["for i in $(seq 300); do mkdir -p dddddddddddddddd && cd dddddddddddddddd; done; touch x"]),
    "a file of a terabyte": ([COPY], ["truncate -s 1T copy.txt"]),
    "JSON without an end": ([IS_ONE], ["python3 -c \"print('[' * 100000)\" > one.json"]),
    "JSON of a million digits": ([IS_ONE], ["python3 -c \"print('1' * 1000000)\" > one.json"]),
    "JSON that is not a number": ([IS_ONE], ["echo NaN > one.json; echo Infinity >> one.json"]),
    "JSON that is true": ([IS_ONE], ["echo true > one.json"]),
    # processes that go on
    "a process that writes to every program's output": (
        [PYTHON_SAYS],
        ["(while true; do for p in /proc/[0-9]*; do echo '42 (checked)' > $p/fd/1; done; done) > /dev/null 2>&1 & sleep 0.2"],
    ),
    "a process that ends whatever else runs": (
        [Prints(command="sleep 0.3; test -e no && echo no || echo yes", text="no")],
        ["(while true; do kill -9 -1; pkill -9 sleep; done) > /dev/null 2>&1 & sleep 0.2"],
    ),
    "a process that puts things there for the moment of a look": (
        [
            COPY,
            *[Holds(path="keep.txt", text=OTHER)] * 40,
            Prints(command="sleep 0.2; cat copy.txt", text=SECRET),
            Holds(path="copy.txt", text=OTHER),
        ],
        ["(while true; do cp secret.txt copy.txt; cp keep.txt copy.txt; done) > /dev/null 2>&1 &"],
    ),
    "as many processes as are allowed": ([RUNS, COPY], ["bomb() { bomb | bomb & }; bomb; sleep 1"]),
    "as much memory as is allowed": ([COPY], ["head -c 250M /dev/zero > fill; head -c 60M /dev/zero > /dev/shm/fill; sleep 0.1"]),
    "a service that answers for another": (
        [Serves(port=PORT, path="/secret.txt", text=SECRET)],
        [f"echo '{OTHER}' > index.html; python3 -m http.server {PORT} -d work > /dev/null 2>&1 & {LISTENING}"],
    ),
    "a service that never ends its answer": (
        [Serves(port=PORT, path="/", text=SECRET)],
        [
            f"python3 -c \"import socket, time; s = socket.create_server(('', {PORT})); c, _ = s.accept(); "
            f"c.send(b'HTTP/1.0 200 OK\\r\\n\\r\\n{SECRET}'); time.sleep(60)\" & {LISTENING}"
        ],
    ),
    "a service that says it failed": (
        [Serves(port=PORT, path="/", text=SECRET)],
        [
            f"python3 -c \"import socket\nserver = socket.create_server(('', {PORT}))\nwhile True:\n    client, _ = server.accept()\n"
            f"    client.recv(999)\n    client.sendall(b'HTTP/1.0 404 No\\r\\n\\r\\n{SECRET}')\n    client.close()\" & {LISTENING}"
        ],
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_was_asked_for_is_paid(name: str) -> None:
    goals, commands = HONEST[name]
    assert paid(goals, *commands) == (1.0, ("every goal is met",))


SLOW = (
    "a process that ends whatever else runs",
    "a process that ends or stops each new shell",
    "a service that never ends its answer",
    "as many processes as are allowed",
    "as much memory as is allowed",
)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CHEATS])
def test_a_cheat_is_not_paid(name: str) -> None:
    assert_not_paid(name, *CHEATS[name])


def assert_not_paid(name: str, goals: Sequence[Goal], commands: Sequence[str]) -> None:
    reward, reasons = paid(goals, *commands)
    assert reward == 0.0 and reasons and reasons != ("every goal is met",), reasons


ANSWERS = ["", "k7-plum-41 or another thing", "k7 plum 41", "k7-рlum-41", "k7-plum-41\n\nanother thing", "K7-plum-4l", ".*", "'"]


@pytest.mark.parametrize("answer", [*ANSWERS[:2], *(pytest.param(answer, marks=pytest.mark.slow) for answer in ANSWERS[2:])])
def test_an_answer_is_one_answer(answer: str) -> None:
    assert paid([Answers(text=SECRET)], answer=answer)[0] == 0.0
    assert paid([Answers(text=SECRET)], answer=f" '{SECRET.upper()}'. ")[0] == 1.0


@pytest.mark.slow
def test_what_is_changed_after_the_verdict_changes_nothing() -> None:
    """What is paid is what stands; a process that goes on could otherwise have it looked at when that suits it."""
    late = "(sleep 3; cp secret.txt copy.txt) > /dev/null 2>&1 &"
    assert paid([COPY], late, wait_s=3.5)[0] == 0.0
    assert paid([COPY], "cp secret.txt copy.txt; (sleep 3; rm copy.txt) > /dev/null 2>&1 &", wait_s=3.5)[0] == 1.0


def test_a_verdict_in_the_middle_ends_nothing() -> None:
    async def run() -> None:
        session = TerminalSession({"own": Own(Serves(port=PORT, path="/secret.txt", text=SECRET))})
        try:
            await session.reset(OWN, 1)
            assert not (await session.evaluate()).success
            await session.step(bash(f"python3 -m http.server {PORT} > /dev/null 2>&1 & {LISTENING}"))
            for _ in range(2):
                assert (await session.evaluate()).success
            assert (await session.step(Finished())).reward == 1.0
        finally:
            await session.close()

    asyncio.run(run())


TASK_CHEATS = {
    "gather-files": "mkdir logs; for f in $(find . -name '*.log' -not -path './logs/*'); do touch logs/$(basename $f); rm $f; done",
    "pack-folder": "f=$(ls -d */ | head -1); f=${f%/}; mkdir x; tar -czf $f.tar.gz x; rm -r $f x",
    "rename-by-pattern": "cd photos; for f in *; do mv $f ${f/_/-}; done",
    "sort-unique": "cp raw.txt words.txt",
    "recover-version": "cd project; git log -p --all > ../token.txt",
    "commit-change": "cd project; git update-index --assume-unchanged *; git checkout -qb x; git commit -qm x --allow-empty",
}


@pytest.mark.parametrize("name", TASK_CHEATS)
def test_half_a_job_is_not_paid(name: str, on_task: Callable[[str], Any]) -> None:
    async def use(session: TerminalSession) -> None:
        await session.step(bash(TASK_CHEATS[name]))
        assert (await session.step(Finished(answer="done"))).reward == 0.0

    on_task(name)(use)


@pytest.fixture
def on_task() -> Callable[[str], Callable[[Callable[[TerminalSession], Coroutine[Any, Any, None]]], None]]:
    """`on_task(name)(use)`: a session with that task of the source, begun."""

    def of(name: str) -> Callable[[Callable[[TerminalSession], Coroutine[Any, Any, None]]], None]:
        def run(use: Callable[[TerminalSession], Coroutine[Any, Any, None]]) -> None:
            async def whole() -> None:
                session = TerminalSession()
                try:
                    await session.reset(load_tasks()[name], 3)
                    await use(session)
                finally:
                    await session.close()

            asyncio.run(whole())

        return run

    return of


def test_a_task_with_a_service_is_still_solved_honestly(on_task: Callable[[str], Any]) -> None:
    async def use(session: TerminalSession) -> None:
        assert (await follow(session)).reward == 1.0 and (await session.evaluate()).success

    on_task("run-service")(use)
