"""The instances that a script plays to measure a policy: those that may be chosen by, unless the figures are reported."""

from __future__ import annotations

import argparse

from sandbox.tasks.task import Split


def add_split(parser: argparse.ArgumentParser) -> None:
    """`--split`, which gives a Split."""
    parser.add_argument(
        "--split",
        type=Split,
        choices=[Split.EVAL, Split.HOLDOUT],
        default=Split.EVAL,
        help="instances that are played: eval while something is still chosen, holdout for figures that are reported (default: eval)",
    )
