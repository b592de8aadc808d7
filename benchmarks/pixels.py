"""Can a policy act by looking? Several iterations of the profile `pixels`, a vision-language policy of 2.7 million parameters from random
weights that is shown task pages and no elements. For each iteration and task: greedy success of the merged policy on holdout
beside two controls on the same instances.

    chance    clicks anywhere on the page below the instruction, uniformly; never typed text. Six attempts at each instance
    blind     the same policy, shown the screen that came before in another episode of the task: what it still solves, it does not see

And the verdicts of full Chromium, where the iteration played a sample again. Homes lie under --root; interrupted, the run goes on where
it stopped, and what was played of a control is kept. Fewer than three seeds are preliminary, and the table says so.

    nice python -m benchmarks.pixels --seeds 0 1 2 --publish
    nice python -m benchmarks.pixels --iterations 0                 chance alone
"""

from __future__ import annotations

import argparse
import asyncio
import io
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.table import Table

from agent.episode.episode import Episode, EpisodeRequest
from agent.policy.action_source import StepContext
from agent.policy.policy import Policy, Prompt, Response
from assets.settings.profile import ActingSettings, Profile
from benchmarks.common.homes import run_flywheel, seconds
from benchmarks.common.kept import fingerprint, kept_row
from benchmarks.common.provenance import Publish, distinct, publish_rows
from pipelines import profiles
from pipelines.stages.engines import open_engine
from pipelines.stages.evaluate import greedy_requests, task_counts
from pipelines.stages.sandboxes import open_local_collector
from sandbox.actions import Click
from sandbox.tasks.task import Split
from warehouse.core.home import Home
from warehouse.evaluation.statistics import wilson
from warehouse.lineage import registry
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

ROOT = Path(".bench/pixels")
NAME = "pixels"
RANDOM = "random-clicks"
ATTEMPTS = 6
"""Of chance at each instance."""
QUERY_PX = 50
"""Height of the instruction above a task's own area."""
WHITE = io.BytesIO()
Image.new("RGB", (160, 210), "white").save(WHITE, "PNG")
Counts = dict[str, tuple[int, int]]
"""Solved and played episodes by task."""

SUCCESS = """select iteration, task_name, sum(num_success)::int, sum(num_episodes)::int from evaluations
    where checkpoint_role = 'merged_policy' and split = 'holdout' group by all order by all"""
TWICE = """select b.iteration, count(*), count(*) filter (where (a.outcome = 'success') = (b.outcome = 'success'))
    from episodes b join episodes a using (iteration, stage, policy_id, task_id, seed)
    where b.purpose = 'second_browser' and a.purpose = 'evaluation' and a.outcome <> 'crashed' and b.outcome <> 'crashed'
    group by all order by all"""


@dataclass(frozen=True, slots=True)
class RandomClicks:
    """Clicks anywhere below the instruction, written in the policy's grammar."""

    acting: ActingSettings

    async def respond(self, context: StepContext) -> Response:
        screen = context.observation
        draw = random.Random(f"{context.request.episode_id} {context.step_index}")
        action = Click(x=draw.randrange(screen.width_px), y=draw.randrange(QUERY_PX, screen.height_px))
        text = self.acting.agent.builder().grammar.format(None, action, screen)
        return Response(text=text, prompt_token_ids=(), token_ids=(), logprobs=(), policy_id=RANDOM)


class OtherEyes:
    """A policy that is shown, instead of its own screen, the newest one of another episode, and at first a white one."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._seen = {"": WHITE.getvalue()}
        """The newest screen by conversation, the newest last."""

    @property
    def policy_id(self) -> str:
        return self._policy.policy_id

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        changed = []
        for prompt in prompts:
            own = str(prompt.conversation)
            other = next(screen for name, screen in reversed(self._seen.items()) if name != own)
            changed.append(replace(prompt, images=dict.fromkeys(prompt.images, other)))
            self._seen.pop(own, None)
            self._seen[own] = next(iter(prompt.images.values()))
        return await self._policy.act(changed)


def holdout(profile: Profile, policy_id: str) -> dict[str, list[EpisodeRequest]]:
    """By task, the instances that iterations report."""
    found: dict[str, list[EpisodeRequest]] = {}
    for one in greedy_requests(profile.acting, policy_id, Split.HOLDOUT, profile.evaluation.holdout_per_task):
        found.setdefault(one.task.name, []).append(one)
    return found


def of_tasks(episodes: Iterable[Episode]) -> Counts:
    return {one.task: (one.num_success, one.num_episodes) for one in task_counts(episodes)}


async def chance(profile: Profile) -> Counts:
    once = [one for of_task in holdout(profile, RANDOM).values() for one in of_task]
    wanted = [one.model_copy(update={"attempt": attempt}) for attempt in range(ATTEMPTS) for one in once]
    async with open_local_collector(profile.acting) as collector:
        return of_tasks([episode async for episode in collector.play(RandomClicks(profile.acting), wanted)])


async def blind(profile: Profile, policy: Policy) -> Counts:
    """Task by task, so that the other screen is of the same task."""
    played: list[Episode] = []
    async with open_local_collector(profile.acting) as collector:
        for wanted in holdout(profile, policy.policy_id).values():
            played += [episode async for episode in collector.collect(OtherEyes(policy), wanted)]
    return of_tasks(played)


def measured(home: Home, profile: Profile, recipe: str, seed: int) -> dict[str, Any]:
    """All figures of a home with finished iterations: chance, and by iteration success, the control and the other browser."""
    warehouse, path = Warehouse(home), home.root.parent / f"{home.root.name}-controls"
    solved: dict[str, Counts] = {}
    twice: list[tuple[str, int, int]] = []
    if home.root.exists():
        with connect(warehouse, tables=["evaluations", "episodes"]) as con:
            success, twice = con.execute(SUCCESS).fetchall(), con.execute(TWICE).fetchall()
        for iteration, task, num, of in success:
            solved.setdefault(iteration, {})[task] = (num, of)
    by_chance = kept_row(path / "chance.json", recipe, {"control": "chance"}, lambda: {"tasks": asyncio.run(chance(profile))})
    blinded = {iteration: _blind_row(path, warehouse, profile, recipe, iteration) for iteration in solved}
    return {
        "seed": seed,
        "measured": distinct([by_chance, *blinded.values()])[-1],
        "seconds": seconds(home),
        "chance": by_chance["tasks"],
        "iterations": {
            iteration: {"success": of, "blind": blinded[iteration]["tasks"], "full_chromium": _twice(twice, iteration)}
            for iteration, of in solved.items()
        },
    }


def _blind_row(path: Path, warehouse: Warehouse, profile: Profile, recipe: str, iteration: str) -> Mapping[str, Any]:
    def play() -> Mapping[str, Any]:
        folder = registry.made_by(warehouse, iteration, "merged_policy").folder
        with closing(open_engine(folder, profile.engine)) as engine:
            return {"tasks": asyncio.run(blind(profile, engine))}

    return kept_row(path / f"blind-{iteration}.json", recipe, {"control": "blind", "iteration": iteration}, play)


def _twice(rows: Sequence[tuple[str, int, int]], iteration: str) -> dict[str, int]:
    of_iteration = [(num, same) for name, num, same in rows if name == iteration]
    return {"played": sum(num for num, _ in of_iteration), "agree": sum(same for _, same in of_iteration)}


def show(found: Mapping[str, Any], console: Console, num_seeds: int) -> None:
    preliminary = "" if num_seeds >= 3 else "preliminary, "
    table = Table(title=f"pixels, seed {found['seed']} ({preliminary}{num_seeds} seeds): holdout by iteration", title_justify="left")
    for column in ("task", "chance", *(part for name in found["iterations"] for part in (f"{name}", "blind"))):
        table.add_column(column, justify="left" if column == "task" else "right")
    for task, (num, of) in sorted(found["chance"].items()):
        cells = [_rate(*row[kind].get(task, (0, 0))) for row in found["iterations"].values() for kind in ("success", "blind")]
        table.add_row(task, _rate(num, of), *cells)
    console.print(table)
    for name, row in found["iterations"].items():
        again = row["full_chromium"]
        console.print(f"{name}: {again['agree']} of {again['played']} verdicts agree in full Chromium", highlight=False)


def _rate(num: int, of: int) -> str:
    if not of:
        return "–"
    interval = wilson(num, of)
    return f"{num / of:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--iterations", type=int, default=3, help="0: run nothing, read homes as they are")
    parser.add_argument("--profile", default="pixels", help="name, or path of a profile that extends it")
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--publish", action=Publish, help="write docs/measured/pixels.json")
    options = parser.parse_args()
    console, rows = Console(width=180), {}
    for seed in options.seeds:
        home, profile = Home(options.root / f"pixels-{seed}"), profiles.load(options.profile, {"seed": seed})
        if options.iterations:
            run_flywheel(home, ["--iterations", str(options.iterations), "--profile", options.profile], {"seed": seed}, console)
        rows[f"seed {seed}"] = measured(home, profile, fingerprint(profile.model_dump(mode="json")), seed)
        show(rows[f"seed {seed}"], console, len(options.seeds))
    if options.publish:
        publish_rows(NAME, rows)


if __name__ == "__main__":
    main()
