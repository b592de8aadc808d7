"""Mutation testing of what decides: changes one small thing of a module, runs the nearest tests, lists the changes that no test noticed.

    make mutants                          every module that is named below, one after the other: hours
    make mutants ARGS="losses gate"       some of them
    make mutants ARGS=--list              the modules

mutmut changes the Python, in a tree of links under .mutants/; SQL, which mutmut cannot read, is changed here clause by clause. Each mutant
runs in a fork of a process that has imported and collected the tests, those alone that call the changed function. A run that was cut off
goes on: what was killed stays killed, what survived runs again. A new test kills a survivor, or tests/survivors.toml says why it may
live. Ends with status 1 where one is open.

Left out: the message of an error that is raised, types (`cast`, annotations), and `strict` of `zip`, a guard against our own mistakes.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import gc
import hashlib
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".mutants"
ANSWERS = ROOT / "tests" / "survivors.toml"
ROOMS = ("pipelines", "assets", "models", "annotation", "agent", "sandbox", "warehouse")
LINKED = (*ROOMS, "tests", "benchmarks", "pyproject.toml", "dagster.yaml", "scripts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """`files` are changed, `tests` run. `sql` names the path of a query as `module:attribute`."""

    files: tuple[str, ...] = ()
    tests: tuple[str, ...]
    sql: str | None = None


MODULES = {
    "routing_sql": Module(sql="warehouse.routing.routes:QUERY", tests=("tests/warehouse/test_routing.py",)),
    "splits": Module(
        files=("sandbox/tasks/task.py", "warehouse/evaluation/choosing.py"),
        tests=("tests/sandbox/test_task.py", "tests/warehouse/test_choosing.py"),
    ),
    "losses": Module(files=("models/rl/updates/losses.py",), tests=("tests/models/test_ppo_losses.py",)),
    "off_policy": Module(files=("models/rl/updates/off_policy.py",), tests=("tests/models/test_ppo_off_policy.py",)),
    "advantages": Module(files=("models/rl/updates/advantages.py",), tests=("tests/models/test_ppo_advantages.py",)),
    "gate": Module(files=("assets/release.py",), tests=("tests/assets/test_release.py",)),
    "statistics": Module(files=("warehouse/evaluation/statistics.py",), tests=("tests/warehouse/test_statistics.py",)),
    "evaluation": Module(
        files=("pipelines/stages/evaluate.py", "warehouse/evaluation/evaluations.py"),
        tests=("tests/pipelines/test_evaluate_worker.py", "tests/warehouse/test_evaluations.py"),
    ),
    "merge": Module(
        files=("models/merging/weights.py", "models/merging/linear.py"),
        tests=("tests/models/test_merge_weights.py", "tests/models/test_merge.py", "tests/models/test_merge_methods.py"),
    ),
    "merge_methods": Module(
        files=tuple(f"models/merging/{name}.py" for name in ("dare", "ties", "slerp", "selection")),
        tests=tuple(f"tests/models/test_merge{name}.py" for name in ("_selection", "_slerp", "_methods", "")),
    ),
    "merge_search": Module(files=("pipelines/stages/merge.py",), tests=("tests/pipelines/test_merge_search.py",)),
    "mixing": Module(files=("warehouse/datasets/mixing.py",), tests=("tests/warehouse/test_mixing.py",)),
    "routing": Module(files=("warehouse/routing/routes.py",), tests=("tests/warehouse/test_routing.py",)),
}

SURVIVED, KILLED, NOT_RUN = "survived", "killed", "not run"
SPARE_S, WALL_S = 5, 600
"""A mutant that takes so many seconds of the processor more than three times what its tests took hangs, and is killed; so by the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change, as the lines before and after it."""

    module: str
    where: str
    change: str
    outcome: str


def run_python(name: str, module: Module) -> list[Mutant]:
    """Raises CalledProcessError where the tests do not even pass on what is not changed."""
    folder = WORK / name
    link_tree(folder, module.files)
    changes: dict[str, dict[str, str]] = {}
    for file in module.files:
        changes |= write_mutants(file, folder)
    (folder / "changes.json").write_text(json.dumps(changes, indent=1))
    command = [sys.executable, str(Path(__file__).resolve()), "--inside", *module.tests]
    subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)}, check=True)
    noted = json.loads((folder / "outcomes.json").read_text())
    return [
        Mutant(module=name, where=one["where"], change=one["change"], outcome=noted.get(one["id"], NOT_RUN)) for one in changes.values()
    ]


def link_tree(folder: Path, files: tuple[str, ...]) -> None:
    """Links to everything that the tests need; what leads to `files` are folders of our own, so that only these differ."""
    opened = {parent for file in files for parent in Path(file).parents}
    for parent in sorted(opened):
        (folder / parent).mkdir(parents=True, exist_ok=True)
        for entry in (ROOT / parent).iterdir():
            inside, link = parent / entry.name, folder / parent / entry.name
            is_needed = str(parent) != "." or entry.name in LINKED
            if is_needed and inside not in opened and str(inside) not in files and not link.is_symlink() and entry.name != "__pycache__":
                link.symlink_to(entry)


def write_mutants(file: str, folder: Path) -> dict[str, dict[str, str]]:
    """Puts all mutants of a file into its copy, behind mutmut's switch. mutmut's name of each → its function, its change, and an id that
    stays the same while the function does."""
    from mutmut.mutation.file_mutation import combine_mutations_to_source, create_mutations

    source = (ROOT / file).read_text()
    tree, mutations, *ignored = create_mutations(file, source)
    ids = left_out(tree)
    wanted = [one for one in mutations if not is_left_out(ids, one.original_node, one.mutated_node)]
    code = combine_mutations_to_source(tree, wanted, *ignored).code
    (folder / file).write_text(code)
    owner, found = file.removesuffix(".py").replace("/", "."), {}
    functions = {node.name: node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    lines = code.splitlines()
    texts = {
        name: [re.sub(r"__mutmut_(orig|\d+)\b", "", line) for line in lines[node.lineno - 1 : node.end_lineno]]
        for name, node in functions.items()
        if "__mutmut_" in name
    }
    seen: dict[str, int] = {}
    for name in texts:
        function = name.rpartition("__mutmut_")[0]
        if name.endswith("__mutmut_orig"):
            continue
        unchanged = texts[f"{function}__mutmut_orig"]
        difference = difflib.unified_diff(unchanged, texts[name], n=0, lineterm="")
        change = changed_lines("\n".join(difference))
        stem = hashlib.sha256("\n".join([owner, *unchanged, change]).encode()).hexdigest()[:16]
        seen[stem] = seen.get(stem, 0) + 1
        where = f"{owner}.{function.removeprefix('x_').removeprefix('xǁ').replace('ǁ', '.')}"
        found[f"{owner}.{name}"] = {"id": f"{stem}-{seen[stem]}", "where": where, "change": change, "function": f"{owner}.{function}"}
    return found


def left_out(tree: Any) -> set[int]:
    """Ids of the libcst nodes in the message of an error, in a `cast`, or at the `strict` of `zip`."""
    import libcst as cst

    found: set[int] = set()
    for node in every_node(tree):
        is_guard = isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "strict"
        is_cast = isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "cast"
        if isinstance(node, cst.Raise) or is_guard or is_cast:
            found.update(id(one) for one in every_node(node))
    return found


def is_left_out(ids: set[int], before: Any, after: Any) -> bool:
    """Whether a mutation changes a node of `ids`, or takes one of them out of a call."""
    kept = {id(arg) for arg in getattr(after, "args", ())}
    gone = [arg for arg in getattr(before, "args", ()) if id(arg) not in kept]
    return id(before) in ids or (bool(gone) and all(id(arg) in ids for arg in gone))


def every_node(node: Any) -> Iterator[Any]:
    yield node
    for child in node.children:
        yield from every_node(child)


class Forks:
    """pytest's loop over the collected tests, once per mutant, each time in a child. Holds where the mutants and their outcomes are."""

    def __init__(self) -> None:
        self.changes: dict[str, dict[str, str]] = json.loads(Path("changes.json").read_text())
        self.noted: dict[str, str] = json.loads(Path("outcomes.json").read_text()) if Path("outcomes.json").exists() else {}

    def pytest_runtestloop(self, session: Any) -> bool:
        items = list(session.items)
        path = Path("calls.json")
        gc.freeze()  # what a child's collector does not look at is not copied
        if self.child(session, items, "stats", path, WALL_S):
            raise SystemExit("the tests fail without any change")
        calls: dict[str, list[int]]
        took_s: list[float]
        calls, took_s = json.loads(path.read_text())
        if self.changes.keys() and not calls:
            raise SystemExit("no test calls what is changed: the tests import another copy")
        todo = [(key, one) for key, one in self.changes.items() if self.noted.get(one["id"]) != KILLED]
        for place, (key, one) in enumerate(todo, start=1):
            callers = calls.get(one["function"]) or range(len(items))  # called in a process that a test starts, or not at all
            limit_s = SPARE_S + 3 * sum(took_s[number] for number in callers)
            status = self.child(session, [items[number] for number in callers], key, None, limit_s)
            self.noted[one["id"]] = KILLED if status else SURVIVED
            Path("outcomes.json").write_text(json.dumps(self.noted, indent=1))
            print(f"\r{place}/{len(todo)}", end="", file=sys.stderr, flush=True)
        return True

    def child(self, session: Any, items: list[Any], mutant: str, calls: Path | None, limit_s: float) -> int:
        """0 where every test passed. Its time is counted in seconds of the processor, since the machine may be busy."""
        pid = os.fork()
        if pid == 0:
            os.setsid()
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit_s), math.ceil(limit_s)))
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(WALL_S)
            try:
                os._exit(run_tests(session, items, mutant, calls))
            except BaseException:
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what a test started and did not end
        return status


def run_tests(session: Any, items: list[Any], mutant: str, calls: Path | None) -> int:
    """Number of failed tests. With `calls`, writes which tests (numbers, the quickest first) call which changed function."""
    from mutmut.mutation.trampoline import set_mutant_under_test
    from mutmut.state import state

    set_mutant_under_test(mutant)
    found: dict[str, list[int]] = {}
    took_s: list[float] = []
    for number, item in enumerate(items):
        started_s = time.process_time()
        following = items[number + 1] if number + 1 < len(items) else None
        state()._stats.clear()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
        took_s.append(time.process_time() - started_s)
        for function in state()._stats:
            found.setdefault(function, []).append(number)
    if calls:
        calls.write_text(json.dumps([{name: sorted(numbers, key=took_s.__getitem__) for name, numbers in found.items()}, took_s]))
    return 0


def run_inside(tests: list[str]) -> int:
    """In the copy, in a process of its own: nothing of ours was imported from elsewhere."""
    import pytest

    given = ["-p", "no:cacheprovider", "-p", "no:xdist", "-q", "-x", "--timeout=0", "--hypothesis-seed=0", "--tb=native"]
    return int(pytest.main([*given, *tests], plugins=[Forks()]))


def changed_lines(diff: str) -> str:
    lines = [line for line in diff.splitlines() if re.match(r"[-+](?![-+]{2})", line)]
    return "\n".join(f"{line[0]} {line[1:].strip()}" for line in lines)


CLAUSES = (
    (r"<>", "="),
    (r">=", ">"),
    (r" < ", " <= "),
    (r" <= ", " < "),
    (r" and ", " or "),
    (r" or ", " and "),
    (r" is null", " is not null"),
    (r" is not null", " is null"),
    (r"\bnot (?!null)", ""),
    (r"arg_min", "arg_max"),
    (r"anti join", "semi join"),
    (r"semi join", "anti join"),
    (r"left join", "join"),
    (r"(?<= then )'withheld'", "'ct'"),
    (r"(?<= then )'sft'", "'ct'"),
    (r"(?<= else )'ct'", "'sft'"),
    (r"= 'crashed'", "= 'failure'"),
    (r"'decide'", "'demote'"),
    (r"(?<= )= 1\b", "= 2"),
    (r"(?<=[ (])100\b", "0"),
    (r"> 1\b", "> 2"),
    (r"count\(\*\)", "1"),
)


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
                continue  # what survived is tested again: there may be a new test
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
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help="list the modules and run nothing")
    arguments = parser.parse_args()
    if arguments.inside:
        return run_inside(arguments.modules)
    if unknown := set(arguments.modules) - MODULES.keys():
        parser.error(f"no module {', '.join(sorted(unknown))}: there are {', '.join(MODULES)}")
    known, num_open = answered(), 0
    for name in arguments.modules or MODULES:
        module = MODULES[name]
        if arguments.list:
            print(f"{name}: {', '.join(module.files) or module.sql} by {', '.join(module.tests)}")
            continue
        found = run_sql(name, module) if module.sql else run_python(name, module)
        survivors = [one for one in found if one.outcome == SURVIVED]
        wording = [one for one in survivors if is_wording(one.change)]
        listed = [one for one in survivors if (name, one.change) in known]
        left = [one for one in survivors if one not in wording and one not in listed]
        num_open += len(left)
        num_killed = sum(one.outcome == KILLED for one in found)
        print(
            f"{name}: {len(found)} mutants, {num_killed} killed, {len(survivors)} survive: {len(wording)} change the words of a text, "
            f"{len(listed)} are answered, {len(left)} are not",
            flush=True,
        )
        for one in left:
            print(f"  {one.where}\n    " + one.change.replace("\n", "\n    "), flush=True)
    return 1 if num_open else 0


if __name__ == "__main__":
    sys.exit(main())
