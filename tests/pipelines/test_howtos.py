"""The pages of docs/howto do what they say: each is run as it stands, in an empty folder, those that begin with a home in a small one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from assets.seed_data.vocabulary import words
from pipelines.orchestration.runs import kept_profile
from tests.pipelines.howto import HOWTO, blocks_of, needs_own_network, pages, run_page, steps_of
from tests.sandbox.own_source import ROOT
from warehouse.core.home import Home
from warehouse.lineage import registry
from warehouse.lineage.release_ledger import changing
from warehouse.lineage.releases import decide
from warehouse.storage.tables import Warehouse

LONG = ("launch-and-schedule", "my-agent")
"""Pages that run whole iterations: tests/iterations/test_howtos.py."""
IN_CI = ("my-environment", "my-logs", "my-verifier")
"""The others take longer together than continuous integration has for pages: `make test-long` runs them."""


@pytest.fixture(scope="module")
def small_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seed policy, two releases, of which the second is live, and a candidate: the quickstart's own policy with random weights. Few tasks
    are played."""
    from models.checkpoints.checkpoint import save  # torch, which a collection has no need of
    from models.families.seed_policy import seed_policy

    home = Home(tmp_path_factory.mktemp("howto") / "home")
    home.make()
    warehouse = Warehouse(home)
    for number, stage in enumerate((registry.SEED, *["merged_policy"] * 3)):
        iteration = f"{number:04d}"
        folder = home.checkpoints / iteration / stage / "random"
        card = save(folder, *seed_policy(words("web"), number), stage=stage, iteration=iteration)
        registry.register(warehouse, iteration=iteration, stage=stage, checkpoint_id=card.checkpoint_id, folder=folder)
        candidate = registry.made_by(warehouse, iteration, stage)
        if number in (0, 3):
            continue
        with changing(warehouse) as ledger:
            decide(warehouse, ledger, iteration, candidate, "live", by="gate", reason="not worse than the release before")
    kept_profile.keep(home, "smoke", {"tasks.lists": ["miniwob:smoke"], "evaluation.holdout_per_task": 1, "evaluation.eval_per_task": 1})
    return home.root


def test_each_page_has_at_most_five_steps_and_is_listed() -> None:
    listed = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in pages():
        text = (HOWTO / f"{page}.md").read_text(encoding="utf-8")
        assert steps_of(text) == list(range(1, len(steps_of(text)) + 1)) and 2 <= len(steps_of(text)) <= 5, page
        assert any(block.kind == "commands" for block in blocks_of(text)), page
        assert f"howto/{page}.md" in listed, page


def a_model(folder: Path) -> None:
    """The reader's own: a folder as `save_pretrained` writes it."""
    from tests.models.served_models import small_chat_model

    model, codec = small_chat_model()
    model.save_pretrained(folder / "my-model")
    codec.tokenizer.save_pretrained(folder / "my-model")


def a_log(folder: Path) -> None:
    """The one of my-logs.md."""
    (log,) = [block for block in blocks_of((HOWTO / "my-logs.md").read_text(encoding="utf-8")) if block.kind == "file"]
    (folder / log.name).write_text(log.text, encoding="utf-8")


BRINGS: dict[str, Callable[[Path], None]] = {"my-model": a_model, "my-verifier": a_log}
"""What the reader of a page has already, beside a home."""
WITHOUT_HOME = ("my-logs",)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow if page in IN_CI else pytest.mark.long) for page in pages() if page not in LONG]
)
def test_a_page_does_what_it_says(page: str, tmp_path: Path, small_home: Path) -> None:
    if needs_own_network(page):
        pytest.skip("it names ports, and only root can give it a network in which they are free")
    folder = tmp_path / "work"
    folder.mkdir()
    if page not in WITHOUT_HOME:
        shutil.copytree(small_home, folder / ".flywheel")
    BRINGS.get(page, lambda _: None)(folder)
    run_page(page, folder)
