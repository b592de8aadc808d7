"""`kill -9` at random moments of episodes on live browsers: does each go on at the step it was cut off at, and what is done again?

A process plays 24 instances of MiniWoB tasks of several steps, four at once, their oracle erring at every fourth step or so; its log is the
one of every stage (agent/episode/log.py). It is killed with its browsers up to 0.8 s after its first new decision and restarted, until
every episode has ended; then come other instances. What is in the log is then compared with the same instances played by a process that
nobody killed: each episode once, every step, screen, reward and token as there (so nothing was done twice to a page, nor left out), and no
process is left. `restart` is the same without the steps in the log, as it was before there were any: each episode under way begins again.
`forks` plays the instances, then a fork of each at its middle step (agent/episode/fork.py), and these are killed in the same way.

A decision is a response that was asked for. `again` counts those beyond one a step; replayed steps are actions that were carried out again
on a new page, in their recorded order, without asking anybody.

    python -m benchmarks.resume --kills 1000 --restart 200 --json .bench/resume.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agent.episode.episode import Episode, EpisodeRequest, Step
from agent.episode.fork import begin, siblings
from agent.episode.log import EpisodeLog
from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.policy.action_source import OracleActionSource, StepContext
from agent.policy.policy import Response
from agent.prompts.prompt import PromptBuilder
from benchmarks.common.provenance import provenance
from sandbox.pool.pool import SessionPool
from sandbox.tasks.miniwob.source import load_tasks
from sandbox.tasks.task import Split
from warehouse.core.home import atomic_write
from warehouse.core.identity import stable_fraction

TASKS = ("login-user", "click-checkboxes-large", "click-checkboxes", "phone-book")
NUM_SEEDS = 6
BUILDER = PromptBuilder("compact")
ARMS = ("resume", "restart", "forks")
SHORTEST_S, LONGEST_S = 0.0, 0.8
GONE_S = 15.0
DECISIONS, READY = "decisions", "ready"


class Unsteady:
    """The oracle, which errs at every fourth step or so: at which, its episode's own sampling seeds say. Writes down what it was asked."""

    def __init__(self, folder: Path, *, only_forks: bool = False) -> None:
        """`only_forks`: the process may be killed from the first decision of a fork on."""
        self._oracle, self._folder, self._only_forks = OracleActionSource(BUILDER.grammar), folder, only_forks

    async def respond(self, context: StepContext) -> Response | None:
        with (self._folder / DECISIONS).open("a") as file:
            file.write(f"{context.request.episode_id} {context.step_index}\n")
        if context.request.fork is not None or not self._only_forks:
            (self._folder / READY).touch()
        response = await self._oracle.respond(context)
        chance = stable_fraction(context.request.sampling_seed(context.step_index))
        if response is None or chance > 0.25:
            return response
        text = f"Thought click Action click [{1 + int(chance * 4 * len(context.observation.elements))}]"
        return Response(text=text, prompt_token_ids=(), token_ids=(), logprobs=(), policy_id="unsteady")


class WithoutSteps(EpisodeLog):
    """The log as it was before it had steps."""

    def append_step(self, request: EpisodeRequest, step: Step) -> None:
        return None


def requests(number: int) -> list[EpisodeRequest]:
    tasks = load_tasks()
    return [
        EpisodeRequest(
            purpose="seed", task=tasks[name].model_copy(update={"max_steps": 20}), seed=seed, policy_id="unsteady", temperature=1.0
        )
        for name in TASKS
        for seed in tasks[name].seeds(Split.TRAIN, NUM_SEEDS, skip=number * NUM_SEEDS)
    ]


async def _play(folder: Path, number: int, arm: str) -> None:
    log = (WithoutSteps if arm == "restart" else EpisodeLog)(folder / "log")
    log.repair()
    async with SessionPool(size=2, num_browsers=1) as pool:
        collector = PoolCollector(pool, BUILDER, settings=CollectorSettings(concurrency=4))
        source = Unsteady(folder, only_forks=arm == "forks")

        async def play_missing(wanted: Sequence[EpisodeRequest]) -> None:
            done = {episode.episode_id for episode in log.without_screenshots()}
            missing = [one for one in wanted if one.episode_id not in done]
            async for _ in collector.play(source, missing, log=log):
                atomic_write(folder / f"{os.getpid()}.resumed", json.dumps(log.resumed.counts).encode())

        await play_missing(requests(number))
        if arm == "forks":
            parents = [episode for episode in log.without_screenshots() if episode.request.fork is None]
            await play_missing([fork for one in parents for fork in siblings_of(one, log)])


def siblings_of(parent: Episode, log: EpisodeLog) -> list[EpisodeRequest]:
    """One fork at the middle step; begun only where it is still to be played."""
    requests = siblings(parent, len(parent.steps) // 2, 1)
    done = {episode.episode_id for episode in log.without_screenshots()}
    for request in requests:
        if request.episode_id not in done:
            begin(request, parent, log)
    return requests


def start(folder: Path, number: int, arm: str) -> int:
    """Fork a process that plays what is missing; the imports are this process's. Returns its id, which is its group's as well."""
    (folder / READY).unlink(missing_ok=True)
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        asyncio.run(_play(folder, number, arm))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def kill(pid: int) -> int:
    """End a process without a word. Returns how many of the processes that it had started are left after GONE_S."""
    started = psutil.Process(pid).children(recursive=True)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    _, left = psutil.wait_procs(started, timeout=GONE_S)
    return len(left)


def killed_until_done(folder: Path, number: int, arm: str, chance: random.Random, max_kills: int) -> tuple[int, int]:
    """Play one set of instances, killed again and again until it is done or `max_kills` are spent, then in peace. Returns the kills, and
    the processes that they left."""
    num_kills = num_left = 0
    while True:
        pid = start(folder, number, arm)
        delay_s, ready_s = chance.uniform(SHORTEST_S, LONGEST_S), None
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                if status:
                    raise SystemExit(f"the process that plays in {folder} failed: see its words above")
                return num_kills, num_left
            if ready_s is None and (folder / READY).exists():
                ready_s = time.monotonic()
            if ready_s is not None and num_kills < max_kills and time.monotonic() - ready_s >= delay_s:
                num_left += kill(pid)
                num_kills += 1
                break
            time.sleep(0.01)


def essence(log: EpisodeLog) -> dict[str, Any]:
    """All that an episode is but its clock times and retries, by its id."""
    return {
        episode.episode_id: (
            episode.model_dump(mode="json", exclude={"duration_ms", "num_retries", "steps"}),
            [step.model_dump(mode="json", exclude={"latency_ms"}) for step in episode.steps],
            sorted(episode.screenshots),
        )
        for episode in log.episodes()
    }


def trial(folder: Path, number: int, arm: str, chance: random.Random, max_kills: int) -> dict[str, int]:
    """One set of instances beside the same played undisturbed."""
    for name in ("killed", "undisturbed"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
    killed_until_done(folder / "undisturbed", number, arm, chance, 0)
    num_kills, num_left = killed_until_done(folder / "killed", number, arm, chance, max_kills)
    expected, found = essence(EpisodeLog(folder / "undisturbed" / "log")), essence(EpisodeLog(folder / "killed" / "log"))
    asked = Counter((folder / "killed" / DECISIONS).read_text().splitlines())
    lines = (folder / "killed" / "log" / "episodes.jsonl").read_bytes().splitlines()
    resumed: Counter[str] = Counter()
    for path in (folder / "killed").glob("*.resumed"):
        resumed.update(json.loads(path.read_text()))
    return {
        "kills": num_kills,
        "episodes": len(expected),
        "steps": sum(len(steps) for _, steps, _ in expected.values()),
        "lost": len(expected.keys() - found.keys()),
        "doubled": len(lines) - len({Episode.model_validate_json(line).episode_id for line in lines}),
        "other": sum(found[name] != expected[name] for name in expected.keys() & found.keys()),
        "left": num_left,
        "again": sum(asked.values()) - len(asked),
        "replayed": resumed["resumed/steps"],
        "went on": resumed["resumed/episodes"],
        "restarted": resumed["resumed/restarted"],
        "refused": sum(bool(episode["fork_refused"]) for episode, _, _ in found.values() if "fork_refused" in episode),
    }


COUNTS = ("kills", "episodes", "steps", "lost", "doubled", "other", "left", "again", "replayed", "went on", "restarted", "refused")


def measure(root: Path, arm: str, num_kills: int, seed: int, bars: Progress) -> Counter[str]:
    """Trials until so many kills came; each is one line of a file, so an interrupted benchmark goes on where it was."""
    path, total = root / f"{arm}.jsonl", Counter[str]()
    root.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    bar = bars.add_task(arm, total=num_kills)
    for number in range(10_000):
        if number == len(rows):
            row = trial(root / arm, number, arm, random.Random(f"{seed}-{number}"), num_kills - total["kills"])
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            rows.append(row)
        total.update(rows[number])
        bars.update(bar, completed=total["kills"])
        if total["kills"] >= num_kills:
            break
    return total


def table(totals: Mapping[str, Counter[str]]) -> Table:
    shown = Table("", *COUNTS, "again a kill", padding=(0, 0))
    for arm, total in totals.items():
        shown.add_row(arm, *(str(total[name]) for name in COUNTS), f"{total['again'] / max(1, total['kills']):.2f}")
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="of the arm `resume`")
    parser.add_argument("--restart", type=int, default=200, help="kills of the arm `restart`")
    parser.add_argument("--forks", type=int, default=200, help="kills of the arm `forks`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", type=Path, default=Path(".bench/resume"), help="where state lies")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    console = Console()
    with Progress(console=console) as bars:
        wanted = dict(zip(ARMS, (given.kills, given.restart, given.forks), strict=True))
        totals = {arm: measure(given.root, arm, num, given.seed, bars) for arm, num in wanted.items() if num}
    console.print(table(totals))
    if given.json is not None:
        given.json.write_text(
            json.dumps({"provenance": provenance(), "arms": {arm: dict(total) for arm, total in totals.items()}}, indent=1)
        )
    return int(any(total[name] for total in totals.values() for name in ("lost", "doubled", "other", "left", "refused")))


if __name__ == "__main__":
    sys.exit(main())
