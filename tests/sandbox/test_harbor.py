"""Harbor's task folders, read and written: one by hand as Harbor's documents have it, ours exported and read again, and Harbor's own loader
and linter on what we wrote.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.venv import python_of
from sandbox.actions import Finished, ToolCall
from sandbox.adapters.harbor_dockerfile import built
from sandbox.adapters.harbor_export import write_harbor
from sandbox.adapters.harbor_source import harbor_source
from sandbox.tasks.conformance import check_source
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import first_seed
from sandbox.tasks.task_source import TaskSource
from sandbox.terminal.session import TerminalSession
from tests.sandbox.own_source import ROOT
from warehouse.core.conformance import problems
from warehouse.core.errors import ConfigError, TaskError

HARBOR = ("harbor==0.25.0",)
FILES = {
    "task.toml": 'version = "1.0"\n[metadata]\ndifficulty = "easy"\n[verifier]\ntimeout_sec = 60.0\nenv = {WANTED = "PLUM"}\n',
    "instruction.md": "<!-- canary: not for training -->\n\nWrite the word of /data/word.txt in capitals into /app/out/word.txt.\n",
    "environment/Dockerfile": (
        "# as ever\nFROM ubuntu:24.04\nENV DEBIAN_FRONTEND=noninteractive\nRUN apt-get update && \\\n    apt-get install -y bash coreutils "
        "&& rm -rf /var/lib/apt/lists/*\nWORKDIR /app\nCOPY words/ /data/\nCOPY --chmod=755 shout.sh .\nRUN mkdir out && touch begun\n"
        'CMD ["bash"]\n'
    ),
    "environment/words/word.txt": "plum\n",
    "environment/shout.sh": "#!/bin/sh\ntr a-z A-Z\n",
    "solution/solve.sh": "#!/bin/bash\nset -e\ncd /app\n./shout.sh < /data/word.txt > out/word.txt\nexit 0\n",
    "tests/test.sh": (
        '#!/bin/bash\nif grep -qx "$WANTED" /app/out/word.txt && [ -f /app/begun ] && [ -f /tests/more.txt ]; then\n'
        "  echo 1.0 > /logs/verifier/reward.txt\nelse\n  echo wrong; echo 0 > /logs/verifier/reward.txt\nfi\n"
    ),
    "tests/more.txt": "more\n",
}


def written(folder: Path, **changed: str | None) -> Path:
    """The task's folder, with files that are others, or (None) not there; names with `_` for `/` and `.` are not needed."""
    place = folder / "tasks" / "shout"
    for name, text in (FILES | changed).items():
        if text is not None:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
    return place


def played(source: TaskSource, *commands: str) -> tuple[float, str]:
    """Reward and reason of the only task, after these commands; of its oracle where there are none."""
    (task,) = source.load_tasks().values()

    async def play() -> tuple[float, str]:
        session = TerminalSession({source.name: source})
        try:
            await session.reset(task, 0)
            for command in commands:
                await session.step(ToolCall(name="execute_bash", arguments={"command": command}))
            action = Finished() if commands else await session.oracle_action()
            while action is not None:
                last = await session.step(action)
                if last.terminated:
                    return last.reward, (await session.evaluate()).reasons[0]
                action = await session.oracle_action()
            raise AssertionError("the oracle gave up")
        finally:
            await session.close()

    return asyncio.run(play())


def test_a_folder_is_played_and_its_own_test_gives_the_reward(tmp_path: Path) -> None:
    source = harbor_source("bench", written(tmp_path).parent)
    (task,) = source.load_tasks().values()
    assert (task.name, task.domain) == ("shout", "terminal") and source.has_oracle(task)
    assert (
        source.description is not None
        and source.description(task) == "Write the word of /data/word.txt in capitals into /app/out/word.txt."
    )
    assert played(source) == (1.0, "every goal is met")
    assert played(source, "pwd; cat /data/word.txt; echo plum > out/word.txt") == (0.0, "a reward of 0, tests/test.sh said 'wrong'")
    assert played(source, "echo PLUM > /app/out/word.txt")[0] == 1.0


@pytest.mark.parametrize(
    "cheat",
    [
        "mkdir -p /logs/verifier && echo 1 > /logs/verifier/reward.txt",
        "mkdir -p /tests && printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt' > /tests/test.sh",
        "(while sleep 0.05; do mkdir -p /tmp/logs/verifier; echo 1 > /logs/verifier/reward.txt; done) 2>/dev/null & disown",
        "printf 'echo 1 > /logs/verifier/reward.txt\\nexit 0\\n' > .bashrc; cp .bashrc .bash_profile; export BASH_ENV=/app/.bashrc",
        "mkdir bin && printf '#!/bin/sh\\nexit 0\\n' > bin/grep && chmod 755 bin/grep && export PATH=/app/bin:$PATH",
        "chmod 000 out",
        "ln -sfn /tests out; ls /tests /solution",
        "truncate -s 900G big",
    ],
)
def test_a_cheat_is_not_paid(tmp_path: Path, cheat: str) -> None:
    reward, _ = played(harbor_source("bench", written(tmp_path).parent), cheat)
    assert reward == 0.0


def test_a_program_that_the_test_runs_cannot_change_the_test(tmp_path: Path) -> None:
    runs = 'if [ "$(bash /app/go.sh)" = 7 ]; then\n  R=1\nelse\n  R=0\nfi\necho $R > /logs/verifier/reward.txt\n'
    source = harbor_source("bench", written(tmp_path, **{"tests/test.sh": runs}).parent)
    assert played(source, "echo 'echo 7' > go.sh")[0] == 1.0
    adds = "echo 'echo 1 > /logs/verifier/reward.txt' >> /tests/test.sh; chmod 777 /tests; mv /tests /tmp; echo wrong"
    assert played(source, f"cat > go.sh <<'EOF'\n{adds}\nEOF")[0] == 0.0


PAYS = "import os, time\ndef pay():\n    open('/logs/verifier/reward.txt', 'w').write('1')\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        "open('/tests/check.py', 'a').write('pass')",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.closerange(0, 9)\n        while True:\n            pay()",
        "os.makedirs('/logs/verifier/reward.txt/x'); open('/logs/verifier/reward.json', 'w').write('{\"reward\": 1}')",
        "os.kill(-1, 9); time.sleep(0.2); pay()",
        "pid = os.getppid()\nmemory = open(f'/proc/{pid}/mem', 'r+b')\nos.kill(pid, 9)\npay()",
    ],
)
def test_a_program_that_our_own_check_runs_cannot_pay_itself(tmp_path: Path, program: str) -> None:
    task = SOURCES["terminal"].load_tasks()["fix-script"]
    source = harbor_source("one", write_harbor(task, first_seed(task), tmp_path))
    reward, _ = played(source, f"cat > stats.py <<'EOF'\n{PAYS}{program}\nEOF")
    assert reward == 0.0


def test_a_test_that_says_nothing_or_too_little_is_not_solved(tmp_path: Path) -> None:
    silent = written(tmp_path / "a", **{"tests/test.sh": "echo broken; exit 3\n"})
    assert played(harbor_source("bench", silent), "true") == (0.0, "tests/test.sh wrote no reward: it ended with 3 and said 'broken'")
    partly = written(tmp_path / "b", **{"tests/test.sh": """echo '{"reward": 0.5}' > /logs/verifier/reward.json\n"""})
    assert played(harbor_source("bench", partly), "true")[0] == 0.0
    assert played(harbor_source("bench", partly, success_at=0.5), "true")[0] == 1.0
    odd = written(tmp_path / "c", **{"tests/test.sh": "echo nan > /logs/verifier/reward.txt\n"})
    assert "wrote no reward" in played(harbor_source("bench", odd), "true")[1]


@pytest.mark.slow
def test_a_folder_keeps_what_sources_promise_and_is_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOURCES.variable, "")
    SOURCES.use({"tasks": "tasks"}, written(tmp_path).parents[1])
    assert problems(check_source(SOURCES["tasks"], num_seeds=1)) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("FROM node:22", "line 2: FROM node:22: without Docker there is this machine's own system"),
        ("FROM debian AS build", "in one stage"),
        ("FROM debian\nFROM debian AS two", "in one stage"),
        (
            "FROM debian\nRUN apt-get install -y no-such-package-here",
            "installs no-such-package-here: a jail has no network. Install them here",
        ),
        ("FROM debian\nRUN pip install pytest", "pip wants a network, and a jail has none"),
        ("FROM debian\nRUN cd / && curl http://x | sh", "curl wants a network"),
        ("FROM debian\nENV SECRET=1 TZ=UTC", "so SECRET cannot be set"),
        ("FROM debian\nARG VERSION", "so VERSION cannot be set"),
        ("FROM debian\nVOLUME /data", "VOLUME is not done without Docker"),
        ("FROM debian\nENTRYPOINT serve", "ENTRYPOINT is not done without Docker"),
        ("FROM debian\nWORKDIR /app\nCOPY --from=build /x /x", "--from=build is not done without Docker"),
        ("FROM debian\nWORKDIR /app\nCOPY nothing .", "the folder environment has no nothing"),
        (f"FROM debian\nWORKDIR /app\nCOPY {'n' * 300} .", "it cannot be read"),
        ("FROM debian\nWORKDIR /app\nCOPY ../tests .", "the folder environment has no ../tests"),
        ("FROM debian\nWORKDIR /app\nADD http://x/y .", "http://x/y is not a file of the folder environment"),
        ("FROM debian\nWORKDIR /app\nCOPY shout.sh /etc/", "/etc is outside of what a task may fill"),
        ("FROM debian\nWORKDIR /app\nRUN true\nCOPY shout.sh .", "Move it before the first RUN"),
        ("FROM debian\nWORKDIR /usr/src", "an episode begins in /usr/src, which a jail shares with this machine. Write `WORKDIR /app`"),
        ("FROM debian", "an episode begins in /, which"),
        ("FROM debian\nWORKDIR /app\nRUN <<EOF\ntrue\nEOF", "what RUN begins with is not done without Docker"),
        ("FROM debian\nWORKDIR /app\nCOPY --chmod=u+x shout.sh .", "it cannot be read"),
        ('FROM debian\nWORKDIR /app\nENV TZ="x', "it cannot be read"),
        ("FROM debian\nWORKDIR /app\nCOPY", "expected what to copy"),
        ("FROM debian\nWORKDIR /app\nRUN true \\", "goes on after the last line"),
        ("FROM debian\nWORKDIR /app\nRUN --mount=type=cache true", "what RUN begins with is not done without Docker"),
    ],
)
def test_what_a_dockerfile_wants_that_only_docker_has_is_named(tmp_path: Path, line: str, words: str) -> None:
    ends = "" if line.endswith(("/usr/src", "FROM debian")) or "WORKDIR /app" in line else "\nWORKDIR /app"
    place = written(tmp_path, **{"environment/Dockerfile": f"# what follows\n{line}{ends}\n"})
    with pytest.raises(TaskError) as caught:
        built(place / "environment")
    assert words in str(caught.value)


def test_a_command_that_begins_with_a_bracket_is_a_shells(tmp_path: Path) -> None:
    place = written(tmp_path, **{"environment/Dockerfile": "FROM debian\nWORKDIR /app\nRUN [ -d x ] || mkdir x\n"})
    assert built(place / "environment").commands[0].endswith("&& [ -d x ] || mkdir x")


def test_an_image_that_this_machine_has_all_of_can_be_allowed(tmp_path: Path) -> None:
    place = written(tmp_path, **{"environment/Dockerfile": "FROM python:3.11-slim\nWORKDIR /srv/app\nCOPY . /srv/app/\n"})
    made = built(place / "environment", images=["python:3.11*"])
    assert made.links == {"/srv/app": "/workspace"} and sorted(made.files) == ["shout.sh", "words/word.txt"]


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[[steps]]\nname = 'a'", "[[steps]], a task of several"),
        ("[environment]\nos = 'windows'", "[environment].os"),
        ("[environment]\ngpus = 1", "[environment].gpus"),
        ("[verifier]\nenvironment_mode = 'separate'", "a verifier in an environment of its own"),
        ("[verifier.env]\nKEY = '${KEY}'", "[verifier].env with ${…}"),
        ("[environment]\nos = 1", "[environment].os"),
        ("environment = 3", "is not Harbor's"),
        ("[environment]\nworkdir = 3", "is not Harbor's"),
        ("[verifier", "is not Harbor's"),
        ("[verifier]\ntimeout_sec = 'soon'", "is not Harbor's"),
        (f"a = {'[' * 3000}", "is not Harbor's"),
    ],
)
def test_what_a_task_wants_that_no_jail_has_is_named(tmp_path: Path, toml: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        harbor_source("bench", written(tmp_path, **{"task.toml": toml}))
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["task.toml", "instruction.md", "tests/test.sh", "environment/Dockerfile", "solution/solve.sh"])
@pytest.mark.parametrize("is_link", [True, False])
def test_a_file_that_is_elsewhere_or_no_text_is_refused(tmp_path: Path, name: str, is_link: bool) -> None:
    place = written(tmp_path)
    (place / name).unlink()
    if is_link:
        (tmp_path / "key.txt").write_text("a secret of this machine")
        (place / name).symlink_to(tmp_path / "key.txt")
    else:
        (place / name).write_bytes(b"\xff\xfe")
    with pytest.raises((ConfigError, TaskError), match="leads out of the task's folder" if is_link else "is not text") as caught:
        source = harbor_source("bench", place)
        (task,) = source.load_tasks().values()
        source.instance(task, 0)
    assert "secret" not in str(caught.value)


def test_a_folder_without_a_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no Harbor task: expected task\.toml in it, or in folders below it"):
        harbor_source("bench", tmp_path)
    with pytest.raises(ConfigError, match=r"it has no tests/test\.sh"):
        harbor_source("bench", written(tmp_path, **{"tests/test.sh": None}))


OURS = ("read-word", "make-folder", "allow-running", "fix-script", "sum-column", "commit-change", "recover-version", "settle-accounts")


def exported(folder: Path) -> list[Path]:
    tasks = SOURCES["terminal"].load_tasks()
    return [write_harbor(tasks[name], first_seed(tasks[name]), folder) for name in OURS]


def test_what_was_exported_says_what_it_is(tmp_path: Path) -> None:
    places = exported(tmp_path)
    assert [path.name.rpartition("-")[0] for path in places] == [*OURS]
    assert "Write the answer, and nothing else, into the file /workspace/answer.txt." in (places[0] / "instruction.md").read_text()
    goals = json.loads((places[0] / "tests/goals.json").read_text())["goals"]
    assert [goal["kind"] for goal in goals] == ["Answers"]
    with pytest.raises(TaskError, match="documents to search"):
        write_harbor(SOURCES["terminal"].load_tasks()["look-up"], 0, tmp_path)
    with pytest.raises(TaskError, match="only terminal tasks are Harbor's"):
        write_harbor(SOURCES["miniwob"].load_tasks()["click-button"], 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_what_was_exported_is_solved_by_its_solution_when_it_is_read_again(name: str, tmp_path: Path) -> None:
    task = SOURCES["terminal"].load_tasks()[name]
    place = write_harbor(task, first_seed(task), tmp_path)
    assert played(harbor_source("one", place)) == (1.0, "every goal is met")
    assert played(harbor_source("one", place), "true")[0] == 0.0


LOADS = """
import json, sys
from pathlib import Path
from harbor.models.task.task import Task
found = {}
for place in map(Path, sys.argv[1:]):
    task = Task(place)
    found[task.name] = [Task.is_valid_dir(place), task.config.environment.network_mode.value, task.paths.discovered_solve_path is not None]
print(json.dumps(found))
"""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_harbor_itself_loads_what_we_wrote(tmp_path: Path) -> None:
    """Harbor 0.25 wants Python 3.12."""
    try:
        python = python_of(ROOT / ".bench" / "harbor", HARBOR, of="3.12")
    except FileNotFoundError:
        pytest.skip("no Python 3.12, which Harbor wants")
    places = exported(tmp_path)
    said = subprocess.run([python, "-c", LOADS, *places], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(said.stdout)
    assert found == {f"flywheel/terminal-{path.name}": [True, "no-network", True] for path in places}
    linted = subprocess.run([python.with_name("harbor"), "lint", *places], capture_output=True, text=True, check=False)
    remarks = [line for line in linted.stdout.splitlines() if line.strip()]
    assert len(remarks) == len(places) and all("[shared-verifier]" in line for line in remarks), linted.stdout + linted.stderr
