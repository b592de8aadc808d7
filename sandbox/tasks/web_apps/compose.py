"""Composing instances: a function or view of an application's map, with values from the seeded data, becomes an instruction, a wanted
difference of state or an answer, and an oracle's way.

The rows that an instance is about, and the names that it adds, are of its seed's split by their own content, so no instance of one split
asks for what one of another does. Candidates of a family are listed once for each split in an order fixed by content, filtered with a
reason for each that is refused, and handed to the split's seeds one by one: two seeds share an instance only where there are fewer
instances than seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from sandbox.tasks.task import Split
from sandbox.tasks.web_apps.apps import app_named
from sandbox.tasks.web_apps.drafts import Draft, Family
from sandbox.tasks.web_apps.functions import load_map
from sandbox.tasks.web_apps.questions import Questions
from sandbox.tasks.web_apps.tasks import WebInstance
from sandbox.tasks.web_apps.uses import Uses
from warehouse.core.errors import ConfigError
from warehouse.core.identity import stable_fraction

MAX_CANDIDATES = 3000
MAX_INSTRUCTION = 360


@lru_cache(maxsize=256)
def instances(name: str, family: Family, split: Split) -> tuple[WebInstance, ...]:
    """Every instance of a family in a split, in order, each with what was refused before it. Raises ConfigError for none at all."""
    found: list[WebInstance] = []
    dropped: Counter[str] = Counter()
    seen: set[str] = set()
    drafts = sorted(_drafts(family, split), key=lambda draft: stable_fraction("web order", name, _identity(draft)))
    for draft in drafts[:MAX_CANDIDATES]:
        instance = draft.instance
        reason = draft.refused or _against(instance, seen)
        if reason or instance is None:
            dropped[reason] += 1
            continue
        seen.add(instance.instruction)
        found.append(_with(instance, dropped))
        dropped.clear()
    if not found:
        raise ConfigError(f"No instance of {name} is left in the split {split}: {dict(dropped)}. Change its entry in tasks.yaml.")
    return tuple(found)


def _with(instance: WebInstance, dropped: Counter[str]) -> WebInstance:
    return replace(instance, dropped=dict(dropped))


def _identity(draft: Draft) -> str:
    return draft.instance.instruction if draft.instance is not None else draft.refused


def _against(instance: WebInstance | None, seen: set[str]) -> str:
    """Why an instance is invalid."""
    if instance is None:
        return "nothing"
    if instance.instruction in seen:
        return "the same as another"
    if len(instance.instruction) > MAX_INSTRUCTION:
        return "too long"
    if instance.answer is not None and instance.answer.casefold() in instance.instruction.casefold():
        return "the answer is in the question"
    keys = [(change.table, change.key) for change in instance.changes if change.key is not None]
    return "two changes of one row" if len(keys) != len(set(keys)) else ""


def _drafts(family: Family, split: Split) -> Iterator[Draft]:
    app = app_named(family.app)
    found = load_map(app)
    asking = Questions(app=app, found=found, family=family, split=split)
    changing = Uses(app=app, found=found, family=family, split=split)
    return {
        "read": asking.read,
        "find": asking.find,
        "match": asking.match,
        "hop": asking.hop,
        "use": changing.use,
        "chain": changing.chain,
    }[family.kind]()
