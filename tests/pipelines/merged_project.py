"""A project with an asset of its own beside the flywheel's; test_jobs.py runs its job in another process."""

from __future__ import annotations

import dagster as dg

from pipelines.definitions import build_defs


@dg.asset
def theirs() -> int:
    return 1


defs = dg.Definitions.merge(build_defs(), dg.Definitions(assets=[theirs], jobs=[dg.define_asset_job("their_job", [theirs])]))


def their_job() -> dg.JobDefinition:
    return defs.resolve_job_def("their_job")
