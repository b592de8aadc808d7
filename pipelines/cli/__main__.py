"""`python -m pipelines.cli …`: the command `flywheel` of this checkout. Imports nothing heavy before it is known that it can be."""

import sys

from warehouse.core.errors import MachineLimit
from warehouse.core.machine import check_address_space

try:
    check_address_space()
except MachineLimit as error:
    sys.exit(f"MachineLimit: {error}")

from pipelines.cli.app import main

main()
