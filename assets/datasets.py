"""Dataset snapshots: which samples of D_CT and D_SFT an iteration trains on, and with what weight. How the mixture is made is
warehouse/datasets/mixing.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
import pyarrow.compute as pc

from assets.iterations.handoff import iteration_input
from assets.settings.profile import Profile
from assets.stages.metadata import describe
from assets.stages.resources import ProfileResource, WarehouseResource
from assets.stages.stage_assets import stage_assets, stage_spec
from warehouse.datasets.mixing import mixed
from warehouse.routing.samples import Kind
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

KINDS: tuple[Kind, ...] = ("ct", "sft")
LEFT_OUT_SHOWN = 5


@stage_assets(
    *(
        stage_spec(
            f"{kind}_dataset",
            table="datasets",
            deps=[iteration_input, "withdrawals"],
            kinds={"deltalake"},
            description=f"Immutable snapshot of D_{kind.upper()} for this iteration.",
        )
        for kind in KINDS
    ),
    group_name="datasets",
    can_subset=True,
)
def dataset_snapshots(
    context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource
) -> Iterator[dg.MaterializeResult[None]]:
    settings = profile.load()
    for kind in KINDS:
        key = f"{kind}_dataset"
        if dg.AssetKey(key) in context.selected_asset_keys:
            yield _snapshot(tables.warehouse, settings, kind, key, context.partition_key)


def _snapshot(warehouse: Warehouse, settings: Profile, kind: Kind, key: str, iteration: str) -> dg.MaterializeResult[None]:
    mixture = settings.ct_mixture if kind == "ct" else settings.sft_mixture
    samples = f"{kind}_samples"
    read = warehouse.version(samples)
    with connect(warehouse) as con:
        found = mixed(con, kind, iteration, mixture)
    rows = found.rows
    version = warehouse.replace_partition("datasets", rows, iteration=iteration, stage=key)
    components = {counted["values"]: counted["counts"] for counted in pc.value_counts(rows["component"]).to_pylist()}
    return dg.MaterializeResult(
        asset_key=key,
        data_version=dg.DataVersion(found.dataset_id),
        metadata=describe(
            config=mixture,
            counts={
                "samples": len(rows),
                **{f"samples/{name}": num for name, num in sorted(components.items())},
                "left out/evaluation overlap": len(found.left_out),
            },
            read={samples: read},
            wrote={"datasets": version},
            dataset=found.dataset_id,
            **_overlap(found.left_out),
        ),
    )


def _overlap(left_out: Mapping[str, str]) -> dict[str, Any]:
    """The first samples that repeat an instruction that is evaluated on, with that instruction."""
    if not left_out:
        return {}
    rows = [f"| {sample_id} | {words.replace('|', ' ')} |" for sample_id, words in sorted(left_out.items())[:LEFT_OUT_SHOWN]]
    return {"left_out": dg.MetadataValue.md("\n".join(["| sample | repeats what is evaluated on |", "|---|---|", *rows]))}
