"""Helpers lie beside the tests: the folder has to be on the path, since tests have no packages."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
