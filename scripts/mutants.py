"""Mutation testing of what decides: changes one small thing of a module, runs the nearest tests, lists the changes that no test noticed.

    make mutants                          every module that is named below, one after the other: hours
    make mutants ARGS="losses gate"       some of them
    make mutants ARGS=--list              what there is

Python is changed by mutmut, in a copy under .mutants/, where a run that was cut off goes on; SQL, which mutmut cannot read, clause by
clause here. A survivor is killed by a new test, or tests/survivors.toml says why it may live. Ends with status 1 where one is open.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".mutants"
ANSWERS = ROOT / "tests" / "survivors.toml"
ROOMS = ("pipelines", "assets", "models", "annotation", "agent", "sandbox", "warehouse")
COPIED = (*ROOMS, "tests", "benchmarks", "pyproject.toml", "dagster.yaml", "scripts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """`files` are changed, `tests` run. `sql` names the path of a query as `module:attribute`."""

    files: tuple[str, ...] = ()
    tests: tuple[str, ...]
    sql: str | None = None


MODULES = {
    "routing_sql": Module(sql="warehouse.routing:QUERY", tests=("tests/warehouse/test_routing.py",)),
    "splits": Module(
        files=("sandbox/task.py", "warehouse/choosing.py"), tests=("tests/sandbox/test_task.py", "tests/warehouse/test_choosing.py")
    ),
    "losses": Module(files=("models/ppo/losses.py",), tests=("tests/models/test_ppo_losses.py",)),
    "off_policy": Module(files=("models/ppo/off_policy.py",), tests=("tests/models/test_ppo_off_policy.py",)),
    "advantages": Module(files=("models/ppo/advantages.py",), tests=("tests/models/test_ppo_advantages.py",)),
    "gate": Module(files=("assets/release.py",), tests=("tests/assets/test_release.py",)),
    "statistics": Module(files=("warehouse/statistics.py",), tests=("tests/warehouse/test_statistics.py",)),
    "evaluation": Module(
        files=("pipelines/workers/evaluate.py", "warehouse/evaluations.py"),
        tests=("tests/pipelines/test_evaluate_worker.py", "tests/benchmarks/test_wheel_curves.py"),
    ),
    "merge": Module(files=("models/merging/weights.py", "models/merging/linear.py"), tests=("tests/models/test_merge_methods.py",)),
    "mixing": Module(files=("warehouse/mixing.py",), tests=("tests/warehouse/test_mixing.py",)),
    "routing": Module(files=("warehouse/routing.py",), tests=("tests/warehouse/test_routing.py",)),
}  # fmt: skip

SURVIVED, KILLED, NOT_RUN = "survived", "killed", "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change, as the lines before and after it."""

    module: str
    where: str
    change: str
    outcome: str


def outcome_of(status: int | None) -> str:
    """What mutmut noted of a mutant: 0 is a suite that passed, 33 a function that no test calls."""
    if status is None:
        return NOT_RUN
    return SURVIVED if status in (0, 33) else KILLED


def run_mutmut(name: str, module: Module, children: int) -> list[Mutant]:
    """Raises CalledProcessError where the tests do not even pass on what is not changed."""
    folder = WORK / name
    for part in COPIED:
        source, target = ROOT / part, folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    with (folder / "pyproject.toml").open("a") as file:
        file.write(
            f"\n[tool.mutmut]\nsource_paths = {json.dumps(list(ROOMS))}\nonly_mutate = {json.dumps(list(module.files))}\n"
            f"also_copy = {json.dumps([part for part in COPIED if part not in ROOMS])}\n"
            f"pytest_add_cli_args_test_selection = {json.dumps(list(module.tests))}\n"
            'pytest_add_cli_args = ["-p", "no:cacheprovider", "-p", "no:xdist", "-q"]\nprocess_isolation = "forkserver"\n'
        )
    mutmut = [str(Path(sys.executable).with_name("mutmut"))]
    with (folder / "mutmut.log").open("w") as log:
        subprocess.run([*mutmut, "run", "--max-children", str(children)], cwd=folder, stdout=log, stderr=log, check=True)
    found = []
    for file in module.files:
        noted = json.loads((folder / "mutants" / f"{file}.meta").read_text())["exit_code_by_key"]
        for key, status in noted.items():
            outcome = outcome_of(status)
            shown = subprocess.run([*mutmut, "show", key], cwd=folder, capture_output=True, text=True, check=False).stdout
            change = changed_lines(shown) if outcome == SURVIVED else ""
            found.append(Mutant(module=name, where=re.sub(r"__mutmut_\d+$", "", key), change=change, outcome=outcome))
    return found


def changed_lines(diff: str) -> str:
    lines = [line for line in diff.splitlines() if re.match(r"[-+](?![-+]{2})", line)]
    return "\n".join(f"{line[0]} {line[1:].strip()}" for line in lines)


CLAUSES = (
    (r"<>", "="), (r">=", ">"), (r" < ", " <= "), (r" <= ", " < "), (r" and ", " or "), (r" or ", " and "), (r" is null", " is not null"),
    (r" is not null", " is null"), (r"\bnot (?!null)", ""), (r"arg_min", "arg_max"), (r"anti join", "semi join"),
    (r"semi join", "anti join"), (r"left join", "join"), (r"(?<= then )'withheld'", "'ct'"), (r"(?<= then )'sft'", "'ct'"),
    (r"(?<= else )'ct'", "'sft'"), (r"= 'crashed'", "= 'failure'"), (r"'decide'", "'demote'"), (r"(?<= )= 1\b", "= 2"),
    (r"(?<=[ (])100\b", "0"), (r"> 1\b", "> 2"), (r"count\(\*\)", "1"),
)  # fmt: skip


def clauses(sql: str) -> Iterator[tuple[str, str]]:
    """(line before and after, the whole query with that one change), for each place that a pattern of CLAUSES matches; not in comments."""
    lines = sql.splitlines()
    for number, line in enumerate(lines):
        code = line.split("--", 1)[0]
        for pattern, other in CLAUSES:
            for match in re.finditer(pattern, code):
                changed = code[: match.start()] + other + code[match.end() :]
                yield f"- {code.strip()}\n+ {changed.strip()}", "\n".join([*lines[:number], changed, *lines[number + 1 :]])


def run_sql(name: str, module: Module) -> list[Mutant]:
    """Each change in a process of its own, forked once everything is imported."""
    import pytest

    assert module.sql is not None
    where, attribute = module.sql.split(":")
    sys.path.insert(0, str(ROOT))
    owner = import_module(where)
    query: Path = getattr(owner, attribute)
    arguments = ["-p", "no:cacheprovider", "-p", "no:xdist", "-x", "-q", *module.tests]
    done = WORK / f"{name}.json"
    noted: dict[str, str] = json.loads(done.read_text()) if done.exists() else {}
    whole = query.read_text()
    with tempfile.TemporaryDirectory() as folder:
        for change, sql in [("unchanged", whole), *clauses(whole)]:
            if noted.get(change) == KILLED and change != "unchanged":
                continue  # what survived is asked again: there may be a new test
            setattr(owner, attribute, Path(folder) / "query.sql")
            (Path(folder) / "query.sql").write_text(sql)
            noted[change] = KILLED if forked(lambda: pytest.main(arguments)) else SURVIVED
            if noted["unchanged"] == KILLED:
                raise SystemExit(f"{name}: the tests fail without any change")
            done.parent.mkdir(exist_ok=True)
            done.write_text(json.dumps(noted, indent=1))
    current = {change for change, _ in clauses(whole)}
    return [Mutant(module=name, where=where, change=change, outcome=noted[change]) for change in sorted(current)]


def forked(work: object) -> int:
    """Exit status of a callable that runs in a child without a voice."""
    child = os.fork()
    if child == 0:
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
            os._exit(int(work()))  # type: ignore[operator]
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def answered() -> dict[tuple[str, str], str]:
    """(module, change) → why it may survive."""
    if not ANSWERS.exists():
        return {}
    rows = tomllib.loads(ANSWERS.read_text())["survivor"]
    return {(row["module"], change.strip()): row["because"] for row in rows for change in row["changes"]}


def is_wording(change: str) -> bool:
    """Whether a change only touches the words of a text: messages are asserted where they help, not word for word."""
    blank = re.compile(r"""f?(\"[^\"]*\"|'[^']*')""")
    before, after = ([blank.sub("…", line[2:]) for line in change.splitlines() if line[0] == sign] for sign in "-+")
    return before == after and before != []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help=f"of {', '.join(MODULES)} (default: all)")
    parser.add_argument("--children", type=int, default=1, help="mutants of Python at once (default: 1)")
    parser.add_argument("--list", action="store_true", help="say what there is and run nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.modules) - MODULES.keys():
        parser.error(f"no module {', '.join(sorted(unknown))}: there are {', '.join(MODULES)}")
    known, num_open = answered(), 0
    for name in arguments.modules or MODULES:
        module = MODULES[name]
        if arguments.list:
            print(f"{name}: {', '.join(module.files) or module.sql} by {', '.join(module.tests)}")
            continue
        found = run_sql(name, module) if module.sql else run_mutmut(name, module, arguments.children)
        survivors = [one for one in found if one.outcome == SURVIVED]
        wording = [one for one in survivors if is_wording(one.change)]
        told = [one for one in survivors if (name, one.change) in known]
        left = [one for one in survivors if one not in wording and one not in told]
        num_open += len(left)
        num_killed = sum(one.outcome == KILLED for one in found)
        print(
            f"{name}: {len(found)} mutants, {num_killed} killed, {len(survivors)} survive: {len(wording)} change the words of a text, "
            f"{len(told)} are answered, {len(left)} are not",
            flush=True,
        )
        for one in left:
            print(f"  {one.where}\n    " + one.change.replace("\n", "\n    "), flush=True)
    return 1 if num_open else 0


if __name__ == "__main__":
    sys.exit(main())
