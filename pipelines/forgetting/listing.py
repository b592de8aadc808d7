"""What `flywheel forget` prints: what descends from the subject, and what to train again so that nothing live has learned from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from pipelines.cli.terminal import counted
from warehouse.core.stages import SEED_ITERATION
from warehouse.lineage.registry import SEED

if TYPE_CHECKING:
    from pipelines.forgetting.forgetting import Plan

SHOWN = 12
WHAT = {"person": "the account", "episode": "the episode", "import": "the import"}


def as_json(plan: Plan) -> dict[str, Any]:
    """Complete, where the console shows the first few."""
    descent = plan.descent
    return {
        "forget_id": plan.subject.forget_id,
        "kind": plan.subject.kind,
        "subject": plan.subject.name,
        "episodes": list(descent.episodes),
        "rows": {table: sorted(ids) for table, ids in descent.rows.items()},
        "withdrawn": plan.withdrawn,
        "held": plan.held,
        "emptied": plan.emptied,
        "runs": list(plan.given.runs),
        "recordings": list(plan.given.recordings),
        "datasets": [
            {
                "dataset_id": one.dataset_id,
                "iteration": one.iteration,
                "stage": one.stage,
                "num_held": one.num_held,
                "num_samples": one.num_samples,
            }
            for one in descent.datasets
        ],
        "checkpoints": [
            {"checkpoint_id": id_, "name": name, "because": plan.tainted[id_], "release": _state(plan, id_)}
            for id_, name in descent.names.items()
        ],
        "later": descent.later,
        "files": [{"what": one.what, "path": str(one.path)} for one in plan.files],
        "retrain": retrain(plan),
    }


def print_plan(plan: Plan, console: Console) -> None:
    def line(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    descent, given = plan.descent, plan.given
    line(f"[bold]{WHAT[plan.subject.kind]} {plan.subject.name}[/] ({plan.subject.forget_id})")
    line(f"  {counted(len(descent.episodes), 'episode')} with {counted(descent.num_steps, 'step')}")
    if given.runs or given.recordings:
        line(f"  on the annotation server: {counted(len(given.runs), 'run')}, {counted(len(given.recordings), 'recording')}")
    line(_listed("  rows to withdraw and erase: ", plan.held))
    line(_listed("  rows to empty: ", plan.emptied))
    for dataset in descent.datasets[-SHOWN:]:
        held = f"{dataset.num_held:,} of its {dataset.num_samples:,} samples"
        line(f"  dataset {dataset.iteration}/{dataset.stage} ({dataset.dataset_id}) holds {held}; it stays, without their content")
    if len(descent.datasets) > SHOWN:
        line(f"  … and {len(descent.datasets) - SHOWN} older datasets; --json lists all")
    for id_, name in list(descent.names.items())[:SHOWN]:
        state = f", [bold]{said}[/]" if (said := _state(plan, id_)) is not None else ""
        line(f"  checkpoint {name} ({id_}{state}) becomes tainted: {escape(plan.tainted[id_])}")
    if len(descent.names) > SHOWN:
        line(f"  … and {len(descent.names) - SHOWN} more tainted checkpoints; --json lists all")
    if descent.later:
        line(_listed("  played by these, and made from that; it holds nothing of it and stays: ", descent.later))
    for one in plan.files:
        note = f": {one.note}" if one.note else ""
        line(escape(f"  {one.what} {one.path}{note}"))
    line("Backups, object stores and copies of exports are not known here: erase it there, too.")


def print_news(before: Plan, now: Plan, console: Console) -> None:
    """What has come since the plan was printed; nothing where nothing has."""
    counts = {
        "episodes": len(set(now.descent.episodes) - set(before.descent.episodes)),
        "runs": len(set(now.given.runs) - set(before.given.runs)),
        "recordings": len(set(now.given.recordings) - set(before.given.recordings)),
        **{table: len(set(ids) - set(before.descent.rows.get(table, ()))) for table, ids in now.descent.rows.items()},
        "checkpoints": len(set(now.descent.names) - set(before.descent.names)),
    }
    if new := {name: num for name, num in counts.items() if num}:
        console.print(_listed("this has come meanwhile, and goes too: ", new), highlight=False, soft_wrap=True)


def retrain(plan: Plan) -> list[str]:
    """What has to be done for nothing that is live to have learned from it."""
    if not plan.descent.tainted:
        return ["Nothing was trained on it: nothing has to be trained again."]
    live_id = plan.ledger.live_id
    if live_id is None or live_id not in plan.tainted:
        return ["What is live has not learned from it: nothing has to be trained again. The tainted checkpoints stay marked."]
    live = plan.ledger.name(live_id)
    clean = [id_ for id_ in plan.ledger.was_live() if id_ not in plan.tainted and plan.ledger.state(id_) != "rolled_back"]
    if clean:
        instead = f"flywheel release rollback {plan.ledger.name(clean[0])} --by NAME --reason '{plan.subject.forget_id}'"
    else:
        instead = f"flywheel release promote {SEED_ITERATION}/{SEED} --by NAME --reason '{plan.subject.forget_id}'"
    return [
        f"To be trained again: {live} ({live_id}) is live and tainted. No release has to learn from it any more after:",
        f"  {instead}",
        "  flywheel run --iterations N   (one more than there are: CT, SFT, RL and the merge, from that policy, on datasets without it)",
    ]


def _state(plan: Plan, checkpoint_id: str) -> str | None:
    """As a release; None of a checkpoint that was never a candidate."""
    return plan.ledger.state(checkpoint_id).replace("_", " ") if plan.ledger.of(checkpoint_id) else None


def _listed(what: str, counts: dict[str, int]) -> str:
    return what + (", ".join(f"{name} {num:,}" for name, num in counts.items()) or "none")
