"""`python -m pipelines.cli …`: the command `flywheel` of this checkout."""

from pipelines.cli.app import main

main()
