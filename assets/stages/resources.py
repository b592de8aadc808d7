"""Resource types that assets ask for: the warehouse, the profile, and the runner of stage subprocesses. Their values are chosen in
pipelines/definitions.py, so a test swaps one resource and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import dagster as dg

from assets.settings.profile import Profile
from assets.stages.requests import StageRequest, StageResult
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse


class WarehouseResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The tables under one FLYWHEEL_HOME."""

    root: str

    @property
    def home(self) -> Home:
        return Home(Path(self.root))

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(self.home)


class ProfileResource(dg.ConfigurableResource, ABC):  # type: ignore[type-arg]
    """The settings of an iteration."""

    @abstractmethod
    def load(self) -> Profile:
        """The profile, validated. Raises ConfigError."""


class StageRunner(dg.ConfigurableResource, ABC):  # type: ignore[type-arg]
    """Runs a stage's work outside the code location, which therefore never imports torch, Prefect or a browser.

    The same request is not worked twice unless the run asks for that: a finished one returns its stored result, a half-finished one
    resumes.
    """

    @abstractmethod
    def run(self, context: dg.AssetExecutionContext, request: StageRequest) -> StageResult:
        """Block until the stage is done. Raises dg.Failure with the worker's own words, and what assets/stages/failures.py names in its
        metadata, when it is not."""

    @abstractmethod
    def forget(self, iteration: str, stage: str) -> None:
        """Keep no result of a stage whose rows are gone: requested again, it is worked again."""
