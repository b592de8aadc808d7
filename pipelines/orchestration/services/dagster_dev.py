"""`dagster dev` with pipelines/orchestration/services/dagster_webserver.py for a webserver (Dagster has no setting for it): `python -m
pipelines.orchestration.services.dagster_dev …`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dagster._cli import dev

OURS = {"dagster_webserver": "pipelines.orchestration.services.dagster_webserver"}


def main() -> None:
    start = vars(dev)["open_ipc_subprocess"]

    def start_ours(command: Sequence[str], **options: Any) -> Any:
        return start([OURS.get(word, word) for word in command], **options)

    vars(dev)["open_ipc_subprocess"] = start_ours
    dev.dev_command.main(prog_name="dagster dev")


if __name__ == "__main__":
    main()
