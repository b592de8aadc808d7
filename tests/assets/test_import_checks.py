"""What is imported after the seed is checked by the gate of the next snapshot: real imports pass it, a row out of bounds blocks by name."""

from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from rich.console import Console

from assets.gates.checks import GATES, IMPORTS, build_gate
from assets.iterations.partitions import ITERATIONS
from assets.stages.resources import WarehouseResource
from pipelines.importing.general import import_general_data
from tests.assets.instances import emptied_instance
from tests.pipelines.demonstration_files import agentnet, images, write_lines
from tests.pipelines.test_import_demonstrations import CODES, run
from warehouse.core.home import Home
from warehouse.storage.catalogue import TABLES
from warehouse.storage.repair.restoring import restore
from warehouse.storage.tables import Warehouse

DATASET_GATE = next(gate for gate in GATES if gate.name == "dataset_gate")


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    """General data, imported by the command that people use, and snapshots of an iteration before."""
    made = Warehouse(Home(tmp_path / "home"))
    chats = [{"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes?"}]}]
    import_general_data(made, write_lines(tmp_path / "chats.jsonl", chats), None, Console(quiet=True))
    return made


def gate(warehouse: Warehouse, iteration: str) -> tuple[dg.AssetCheckEvaluation, bool, str]:
    """What the gate says of imports in an iteration whose snapshots are made, whether the run goes on, and its message."""
    for stage in DATASET_GATE.guards:
        warehouse.replace_partition("datasets", [], iteration=iteration, stage=stage)

    @dg.asset(name="ct_dataset", partitions_def=ITERATIONS)
    def ct() -> None: ...

    @dg.asset(name="sft_dataset", partitions_def=ITERATIONS)
    def sft() -> None: ...

    with emptied_instance() as instance:
        instance.add_dynamic_partitions(str(ITERATIONS.name), [iteration])
        made = dg.materialize(
            [ct, sft, build_gate(DATASET_GATE)],
            instance=instance,
            partition_key=iteration,
            resources={"tables": WarehouseResource(root=str(warehouse.home.root))},
            raise_on_error=False,
        )
        (found,) = [check for check in made.get_asset_check_evaluations() if check.check_name == IMPORTS]
        failed = [str(event.step_failure_data.error.message) for event in made.get_step_failure_events() if event.step_failure_data.error]
    return found, made.success, " ".join(failed)


@pytest.mark.slow
def test_a_bad_row_of_an_import_blocks_by_its_name_and_is_mended(warehouse: Warehouse) -> None:
    (row,) = warehouse.read("ct_samples", stage="general_chats").to_pylist()
    row |= {"stage": "imported_late", "sample_id": "sample-planted", "step_index": -1}
    version = warehouse.version("ct_samples")
    # The warehouse would refuse the row: whoever wrote it went past it.
    write_deltalake(warehouse.folder("ct_samples"), pa.Table.from_pylist([row], TABLES["ct_samples"].schema), mode="append")
    found, goes_on, said = gate(warehouse, "0001")
    assert not found.passed and not goes_on
    for part in ("dataset_gate of iteration 0001", "ct_samples of imported_late", "of step_index", "sample-planted", "flywheel restore"):
        assert part in said, said
    restore(warehouse, "ct_samples", version)
    found, goes_on, said = gate(warehouse, "0001")
    assert found.passed and goes_on, said
    assert found.metadata["looked at"].value == ["ct_samples of general_chats"]


@pytest.mark.slow
def test_what_the_importers_write_is_as_the_catalogue_says(tmp_path: Path) -> None:
    images(tmp_path, 4)
    path = write_lines(tmp_path / "demos.jsonl", [agentnet("one", CODES), agentnet("two", CODES, completed=False)])
    run(tmp_path / "home", "agentnet", path)
    found, goes_on, said = gate(Warehouse(Home(tmp_path / "home")), "0001")
    assert found.passed and goes_on, said
    tables = ("tasks", "episodes", "steps", "verdicts", "sft_samples", "ct_samples")
    assert set(found.metadata["looked at"].value) == {*(f"{table} of imported_demos" for table in tables), "screenshots of all stages"}
