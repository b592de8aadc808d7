"""Lineage on the planted flywheel: back to everything a checkpoint was made from, forward to everything a screenshot went into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import duckdb
import pytest
from rich.console import Console

from warehouse.core.errors import UnknownId
from warehouse.core.home import Home
from warehouse.lineage import registry
from warehouse.lineage.descent import Start, descent
from warehouse.lineage.graph import LineageGraph, NodeId
from warehouse.lineage.iterations_graph import iterations_graph
from warehouse.lineage.relations import NODE_KINDS, RELATIONS
from warehouse.lineage.walk import resolve, trace, trace_back
from warehouse.reporting.iteration_summaries import summaries
from warehouse.storage.catalogue import TABLES
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def con(planted: Warehouse) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(planted, lineage=True) as con:
        yield con


def _ids(graph: LineageGraph, kind: str) -> set[str]:
    return {node.id for node in graph.nodes.values() if node.kind == kind}


def _text(graph: LineageGraph) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(graph.to_tree(), soft_wrap=True)
    return capture.get()


def _reach(con: duckdb.DuckDBPyConnection, macro: str, node_id: str) -> dict[str, int]:
    return dict(con.execute(f"SELECT kind, count(DISTINCT id) FROM {macro}(?) GROUP BY kind", [node_id]).fetchall())


def test_every_reference_of_the_catalogue_is_an_edge_or_is_left_out_on_purpose() -> None:
    grouped = {"checkpoints": "checkpoint", "evaluations": "evaluation", "datasets": "dataset"}
    by_table = {kind.source: kind.name for kind in NODE_KINDS} | grouped
    left_out = {
        ("evaluations", "tasks"),  # an evaluation stands for all its tasks
        ("merge_candidates", "tasks"),  # a mixture that was tried is not a node: its weights were thrown away
        ("releases", "checkpoints"),  # a change is not a node: nothing is made of it
        ("taints", "checkpoints"),  # a mark is not a node: nothing is made of it
        ("training_metrics", "checkpoints"),  # curves are of the checkpoint, nothing is made of them
        ("task_instances", "tasks"),  # an instance is not a node: its episodes name the task
        ("steps", "episodes"),  # turned round: an episode consists of its steps
    }
    edges = {(relation.child, relation.parent) for relation in RELATIONS}
    for name, table in TABLES.items():
        for column in table.columns:
            if column.references is not None:
                target = column.references.split(".")[0]
                assert (name, target) in left_out or (by_table[name], by_table[target]) in edges, column
    assert ("episode", "step") in edges


def test_a_checkpoint_leads_back_to_everything_it_was_made_from(con: duckdb.DuckDBPyConnection) -> None:
    graph = trace(con, "ckpt-sft-2", direction="up", limit_per_relation=None)
    assert _ids(graph, "checkpoint") == {"ckpt-sft-2", "ckpt-merged-1", "ckpt-rlp-1", "ckpt-rlf-1", "ckpt-sft-1", "ckpt-ct-1", "ckpt-seed"}
    assert _ids(graph, "dataset") == {"data-sft-2", "data-sft-1", "data-ct-1"}
    assert _ids(graph, "sft_sample") == {"sft-seed-0", "sft-seed-1", "sft-note-1", "sft-good"}
    assert len(_ids(graph, "ct_sample")) == 20
    assert _ids(graph, "annotation") == {"note-1"}
    assert _ids(graph, "episode") == {"ep-seed", "ep-good", "ep-bad"}
    assert _ids(graph, "step") == {f"{episode}#{i}" for episode in ("ep-seed", "ep-good", "ep-bad") for i in (0, 1)}
    assert _ids(graph, "screenshot") == {"shot-0", "shot-1"}
    assert _ids(graph, "task") == {"task-a"} and _ids(graph, "oracle") == {"oracle"}
    assert not graph.omitted and not graph.is_cut


def test_a_screenshot_leads_forward_to_every_checkpoint_that_learned_from_it(con: duckdb.DuckDBPyConnection) -> None:
    graph = trace(con, "shot-1", direction="down")
    assert {"ckpt-sft-1", "ckpt-merged-1", "ckpt-sft-2"} <= _ids(graph, "checkpoint")
    assert "ckpt-ct-1" not in _ids(graph, "checkpoint")
    assert "sft-note-1" in _ids(graph, "sft_sample") and "note-1" in _ids(graph, "annotation")


@pytest.mark.slow
def test_walking_up_and_down_are_each_others_inverse(con: duckdb.DuckDBPyConnection) -> None:
    for node_id, other in (("ckpt-sft-2", "shot-0"), ("data-sft-2", "ep-bad"), ("ep-good", "task-a")):
        assert other in {node.id for node in trace(con, node_id, direction="up").nodes.values()}
        assert node_id in {node.id for node in trace(con, other, direction="down").nodes.values()}


def test_labels_say_when_by_whom_and_how_well(con: duckdb.DuckDBPyConnection) -> None:
    nodes = trace(con, "ckpt-sft-2", limit_per_relation=None).nodes
    merged = nodes[NodeId("checkpoint", "ckpt-merged-1")]
    assert (merged.iteration, merged.stage) == ("0001", "merged_policy")
    assert "holdout 70.0 % of 10" in merged.label and "also 0001/released_policy, 0002/ct_model" in merged.label
    assert nodes[NodeId("episode", "ep-bad")].label == "click-button seed 2: failure"
    assert nodes[NodeId("dataset", "data-ct-1")].label == "20 ct samples"
    assert nodes[NodeId("step", "ep-bad#1")].label == "click at step 1"
    assert nodes[NodeId("annotation", "note-1")].label == "oracle relabel: override"


def test_who_left_weights_as_they_were_does_not_name_them(tmp_path: Path) -> None:
    """A specialist that kept its start, and a merge that is one specialist, are their own parents; "merged" comes before "rl" in a list."""
    warehouse = Warehouse(Home(tmp_path / "home"))
    for stage, checkpoint, parents in (
        ("sft_model", "checkpoint-s", ["checkpoint-c"]),
        ("rl_forms", "checkpoint-s", ["checkpoint-s"]),
        ("rl_pointing", "checkpoint-p", ["checkpoint-s"]),
        ("merged_policy", "checkpoint-p", ["checkpoint-s", "checkpoint-p"]),
    ):
        folder = warehouse.home.checkpoints / stage
        registry.register(warehouse, iteration="0001", stage=stage, checkpoint_id=checkpoint, folder=folder, parents=parents)
    with connect(warehouse, lineage=True) as own:
        graph = trace(own, "0001/merged_policy", direction="up")
    labels = {node.id: node.label for node in graph.nodes.values() if node.label}
    assert labels == {"checkpoint-p": "rl_pointing, also 0001/merged_policy", "checkpoint-s": "sft_model, also 0001/rl_forms"}
    assert _text(graph).startswith("checkpoint-p rl_pointing"), "an id that says its kind does not repeat it"


def test_many_neighbours_are_counted_and_not_followed(con: duckdb.DuckDBPyConnection) -> None:
    graph = trace(con, "data-ct-1", direction="up", limit_per_relation=4)
    assert _ids(graph, "ct_sample") == {"ct-0", "ct-1", "ct-2", "ct-3"}
    (omitted,) = graph.omitted
    assert (omitted.kind, omitted.count, omitted.direction) == ("ct_sample", 16, "up")
    assert "contains … 16 more ct_samples" in _text(graph)
    assert "… 16 more ct_samples" in graph.to_svg() and "… 16 more ct_samples" in graph.to_mermaid()


def test_a_walk_stops_at_its_depth_and_at_its_number_of_nodes(con: duckdb.DuckDBPyConnection) -> None:
    near = trace(con, "ckpt-sft-2", direction="up", depth=1)
    assert set(near.nodes) == {("checkpoint", "ckpt-sft-2"), ("checkpoint", "ckpt-merged-1"), ("dataset", "data-sft-2")}
    small = trace(con, "ckpt-sft-2", direction="up", max_nodes=5)
    assert len(small.nodes) == 5 and small.is_cut
    assert "stopped after 5 nodes" in _text(small)
    assert all(edge.child in small.nodes and edge.parent in small.nodes for edge in small.edges)


def test_sql_counts_the_whole_reach(con: duckdb.DuckDBPyConnection) -> None:
    assert _reach(con, "ancestors", "ckpt-sft-2") == {
        "checkpoint": 6,
        "dataset": 3,
        "ct_sample": 20,
        "sft_sample": 4,
        "annotation": 1,
        "episode": 3,
        "step": 6,
        "task": 1,
        "screenshot": 2,
        "oracle": 1,
    }
    assert _reach(con, "descendants", "ckpt-sft-2") == {"evaluation": 1}


@pytest.mark.usefixtures("tables_place")
def test_a_specialist_leads_back_to_the_episodes_it_was_trained_in(warehouse: Warehouse, make: Any) -> None:
    trained, unmoved = {"iteration": "0001", "stage": "rl_pointing"}, {"iteration": "0001", "stage": "rl_forms"}
    for where, checkpoint_id in ((trained, "ckpt-rlp"), (unmoved, "ckpt-sft")):
        warehouse.replace_partition("checkpoints", [make.checkpoint(checkpoint_id, parents=["ckpt-sft"])], **where)
    # Between rounds the policy has an id, but no checkpoint is kept of it.
    acted = [
        make.episode(f"ep-{round_}", purpose="rl", policy_id=policy_id) for round_, policy_id in enumerate(("ckpt-sft", "ckpt-round-2"))
    ]
    warehouse.replace_partition("episodes", acted, **trained)
    warehouse.replace_partition("episodes", [make.episode("ep-dull", purpose="rl", policy_id="ckpt-sft")], **unmoved)
    merged = make.checkpoint("ckpt-merged", parents=["ckpt-rlp", "ckpt-sft"])
    warehouse.replace_partition("checkpoints", [merged], iteration="0001", stage="merged_policy")
    with connect(warehouse, lineage=True) as con:
        graph = trace(con, "ckpt-merged", direction="up")
        assert _ids(graph, "episode") == {"ep-0", "ep-1"}
        learned = {(edge.child.id, edge.parent.id) for edge in graph.edges if edge.relation == "learned from"}
        assert learned == {("ckpt-rlp", "ep-0"), ("ckpt-rlp", "ep-1")}
        assert "ckpt-merged" in _ids(trace(con, "ep-1", direction="down"), "checkpoint")
        assert trace(con, "ep-dull", direction="down").edges == []


def test_a_specialist_that_names_its_episodes_leads_to_these_alone(warehouse: Warehouse, make: Any) -> None:
    """Not to those of its stage that were in no batch, that crashed, or that another run of the stage left."""
    trained, unmoved = {"iteration": "0001", "stage": "rl_pointing"}, {"iteration": "0001", "stage": "rl_forms"}
    named = make.checkpoint("ckpt-rlp", parents=["ckpt-sft"], episode_ids=["ep-0", "ep-2"])
    warehouse.replace_partition("checkpoints", [named], **trained)
    warehouse.replace_partition("checkpoints", [make.checkpoint("ckpt-sft-2", episode_ids=[])], **unmoved)
    acted = [make.episode(f"ep-{number}", purpose="rl", policy_id="ckpt-sft") for number in range(4)]
    warehouse.replace_partition("episodes", acted, **trained)
    warehouse.replace_partition("episodes", [make.episode("ep-dull", purpose="rl", policy_id="ckpt-sft")], **unmoved)
    for graph in (trace_back(warehouse, "ckpt-rlp"), trace_back(warehouse, "0001/rl_pointing")):
        assert {edge.parent.id for edge in graph.edges if edge.relation == "learned from"} == {"ep-0", "ep-2"}
        assert graph.nodes["episode", "ep-2"].label == "click-button seed 1: success"
    assert _ids(trace_back(warehouse, "ckpt-sft-2"), "episode") == set()
    with connect(warehouse, lineage=True) as con:
        assert _ids(trace(con, "ckpt-rlp", direction="up"), "episode") == {"ep-0", "ep-2"}
        went_into = {name: _ids(trace(con, name, direction="down"), "checkpoint") for name in ("ep-0", "ep-1", "ep-2", "ep-dull")}
    assert went_into == {"ep-0": {"ckpt-rlp"}, "ep-1": set(), "ep-2": {"ckpt-rlp"}, "ep-dull": set()}


@pytest.mark.usefixtures("tables_place")
def test_a_fork_leads_back_to_its_parent_and_goes_with_it_unless_it_was_refused(warehouse: Warehouse, make: Any) -> None:
    """Of three forks one was forked itself, and one was refused: it holds nothing of its parent's."""
    where = {"iteration": "0001", "stage": "rl_pointing"}
    warehouse.replace_partition("checkpoints", [make.checkpoint("ckpt-rlp", parents=["ckpt-sft"], episode_ids=["ep-2"])], **where)
    left = [("ep-0", None, None, None), ("ep-1", "ep-0", 1, None), ("ep-2", "ep-1", 1, None), ("ep-3", "ep-0", 1, "it does not repeat")]
    rows = [
        make.episode(name, purpose="rl", policy_id="ckpt-sft", parent_episode_id=parent, fork_step=step, fork_refused=refused)
        for name, parent, step, refused in left
    ]
    warehouse.replace_partition("episodes", rows, **where)
    graph = trace_back(warehouse, "ep-2")
    forked = {(edge.child.id, edge.parent.id) for edge in graph.edges if edge.relation == "forked from"}
    assert forked == {("ep-2", "ep-1"), ("ep-1", "ep-0")}
    with connect(warehouse, lineage=True) as con:
        assert _ids(trace(con, "ep-0", direction="down"), "checkpoint") == {"ckpt-rlp"}
        assert "ep-0" not in _ids(trace(con, "ep-3", direction="up"), "episode")
    found = descent(warehouse, Start(episodes=frozenset({"ep-0"})))
    assert found.episodes == ("ep-0", "ep-1", "ep-2") and found.tainted == {"ckpt-rlp"}
    assert not descent(warehouse, Start(episodes=frozenset({"ep-3"}))).tainted


def test_an_id_may_be_shortened_or_named_by_iteration_and_stage(con: duckdb.DuckDBPyConnection) -> None:
    assert resolve(con, "ckpt-rlf") == ("checkpoint", "ckpt-rlf-1")
    assert resolve(con, "0001/released_policy") == ("checkpoint", "ckpt-merged-1")
    with pytest.raises(UnknownId, match=r"is ambiguous: it may be ckpt-sft-1 \(checkpoint\), ckpt-sft-2"):
        resolve(con, "ckpt-sft")


def test_a_task_may_be_given_by_its_name(warehouse: Warehouse, make: Any) -> None:
    warehouse.replace_partition("tasks", [make.task("task-1", name="click-button")], iteration="0000", stage="tasks")
    with connect(warehouse, lineage=True) as con:
        assert resolve(con, "click-button") == ("task", "task-1")


def test_what_is_like_nothing_has_no_nearest_and_a_stage_without_weights_says_so(con: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(UnknownId, match=r"the id 'abc': none is like it\. .* `flywheel status`"):
        resolve(con, "abc")
    with pytest.raises(UnknownId, match=r"stage sft_model of iteration 0042 has made no checkpoint; there are 0"):
        resolve(con, "0042/sft_model")


def test_an_unknown_id_is_named_with_the_nearest(con: duckdb.DuckDBPyConnection, warehouse: Warehouse) -> None:
    with pytest.raises(UnknownId, match=r"the id 'ckpt-seet': the nearest are ckpt-seed \(checkpoint\)"):
        trace(con, "ckpt-seet")
    with pytest.raises(LookupError, match="nothing in the warehouse has the id ''"):
        trace(con, "")
    with connect(warehouse, lineage=True) as empty, pytest.raises(UnknownId, match="the warehouse is empty"):
        trace(empty, "anything")


def test_the_tree_draws_each_thing_once(con: duckdb.DuckDBPyConnection) -> None:
    text = _text(trace(con, "ep-bad"))
    assert text.startswith("episode ep-bad click-button seed 2: failure (0001/rollouts)")
    assert "├── made from" in text and "└── went into" in text
    assert text.count("contains dataset data-sft-2") == 1
    assert "route ep-bad/route ct: V=0 (0001/routing) (above)" in text


def test_ids_and_labels_with_markup_are_shown_as_they_are(warehouse: Warehouse, make: Any) -> None:
    odd = 'task-[bold]"<x>&`'
    warehouse.replace_partition("tasks", [make.task(odd, name="a [red]b[/red] <c>")], iteration="0000", stage="tasks")
    with connect(warehouse, lineage=True) as con:
        graph = trace(con, odd)
    assert odd in _text(graph) and "[red]b[/red]" in _text(graph)
    texts = [element.text for element in ElementTree.fromstring(graph.to_svg()).iter(f"{SVG}text")]
    assert "a [red]b[/red] <c> (pointin…" in texts
    assert "#lt;c#gt;" in graph.to_mermaid() and "#quot;" in graph.to_mermaid()


def test_a_circle_does_not_hang_the_walk(warehouse: Warehouse, make: Any) -> None:
    for stage, parent in (("ct_model", "b"), ("sft_model", "a")):
        row = make.checkpoint("a" if stage == "ct_model" else "b", parents=[parent])
        warehouse.replace_partition("checkpoints", [row], iteration="0001", stage=stage)
    with connect(warehouse, lineage=True) as con:
        graph = trace(con, "a")
        assert set(graph.nodes) == {("checkpoint", "a"), ("checkpoint", "b")}
        assert _reach(con, "ancestors", "a") == {"checkpoint": 2}
        assert ElementTree.fromstring(graph.to_svg()).tag == f"{SVG}svg"


def test_lineage_as_of_an_earlier_iteration_knows_nothing_of_later_ones(planted: Warehouse) -> None:
    with connect(planted, as_of="0001", lineage=True) as con:
        assert _ids(trace(con, "ckpt-merged-1", direction="down"), "checkpoint") == {"ckpt-merged-1"}
        with pytest.raises(UnknownId):
            trace(con, "ckpt-sft-2")


def test_iterations_are_drawn_side_by_side(con: duckdb.DuckDBPyConnection, planted: Warehouse) -> None:
    graph = iterations_graph(con, summaries(planted))
    titles = {key: (box.title, box.subtitle) for key, box in ((box.key, box) for box in graph.diagram.boxes)}
    assert titles["0000/sft"] == ("seed of D_SFT", "2 samples")
    assert titles["0001/merged_policy"] == ("merged_policy", "holdout 70.0 % · ckpt-merged-1")
    assert titles["0001/routes"] == ("routes of its rollouts", "ct 1 · sft 1")
    assert titles["0002/ct_model"] == ("ct_model", "CT runs every second iteration")
    arrows = {(arrow.start, arrow.end): arrow.label for arrow in graph.diagram.arrows}
    assert arrows["0001/rl_forms", "0001/merged_policy"] == "made from"
    assert arrows["0001/merged_policy", "0001/released_policy"] == "passed on"
    assert arrows["0001/released_policy", "0002/ct_model"] == "passed on"
    assert arrows["0001/released_policy", "0001/routes"] == "acted"
    assert arrows["0001/routes", "0002/data-sft-2"] == "joined the next data"
    assert arrows["0002/ct_model", "0002/sft_model"] == "made from"
    root = ElementTree.fromstring(graph.to_svg())
    headings = {element.text for element in root.iter(f"{SVG}text")}
    assert {"seed", "iteration 0001", "iteration 0002"} <= headings
    assert graph.to_mermaid().startswith("flowchart LR\n")


def test_after_a_rollback_the_release_before_is_what_acted(warehouse: Warehouse, make: Any) -> None:
    for iteration, checkpoint_id in (("0001", "a"), ("0002", "b")):
        warehouse.replace_partition("checkpoints", [make.checkpoint(checkpoint_id)], iteration=iteration, stage="released_policy")
    warehouse.replace_partition("episodes", [make.episode("ep", policy_id="a")], iteration="0002", stage="rollouts")
    warehouse.replace_partition("routes", [{"episode_id": "ep", "route": "ct", "reason": "V=0"}], iteration="0002", stage="routing")
    with connect(warehouse) as con:
        graph = iterations_graph(con, summaries(warehouse))
    assert [arrow.start for arrow in graph.diagram.arrows if arrow.label == "acted"] == ["0001/released_policy"]


def test_no_iterations_are_an_empty_drawing(warehouse: Warehouse) -> None:
    with connect(warehouse) as con:
        graph = iterations_graph(con, summaries(warehouse))
    assert graph.diagram.boxes == []
    assert ElementTree.fromstring(graph.to_svg()).tag == f"{SVG}svg"
