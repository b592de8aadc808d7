"""Judges of a user's own by name: JUDGES. How one is registered is warehouse/core/plugins.py, what one may say own.py; a profile's
`verdicts.judges` names those that judge. An address is a judge as well: whatever answers there is asked about each episode.
"""

from __future__ import annotations

from models.judges.own import AddressJudge, JudgeFunction
from warehouse.core.plugins import Plugins

JUDGES: Plugins[JudgeFunction] = Plugins(
    "judges",
    noun="judge",
    example="judge.py:judge",
    is_one=callable,
    expected="a function of a Case (models/judges/judge.py) that returns True or False, a score from 0 to 1, or a Verdict",
    own_name=lambda found: None,
    taken_as=lambda reference: AddressJudge(reference) if reference.startswith(("http://", "https://")) else None,
    ships=False,
)
