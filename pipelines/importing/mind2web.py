"""Mind2Web's action traces (Deng et al. 2023, arXiv 2306.06070): tasks with their actions as JSON, or one row an action, with its
screenshot, as Parquet (Multimodal-Mind2Web).

An action is an operation on an element, whose place is its bounding box. Steps without a screenshot are of a page whose elements are known
from its cleaned HTML and from its candidates' boxes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lxml import etree

from agent.grammars.elements import MAX_ELEMENTS
from pipelines.importing.reading import OnBytes, RawRecord, raw_records
from pipelines.importing.trajectories import DemonstratedStep, Demonstration, Entry, Importer, Picture, Pictures
from sandbox.actions import Action, Click, Hotkey, MoveTo, SelectOption, TypeText
from sandbox.html_tree import html_tree
from sandbox.importing.collection import Collection
from sandbox.importing.fields import BadRecord, Fields
from sandbox.importing.reading import NotPlain, parse_json
from sandbox.session import Element

ASIDE = ("website", "domain", "subdomain", "action_reprs", "target_action_index", "target_action_reprs")
ACTION_ASIDE = ("raw_html", "action_repr")
CANDIDATE_ASIDE = ("score", "rank")
"""A ranking model's fields of an element."""
ROLES = {"a": "link", "button": "button", "select": "select", "textarea": "textarea", "input": "input", "img": "image", "li": "item"}
LABELS = ("aria_label", "alt", "placeholder", "input_value", "title")
SMALLEST_PAGE_PX = (1280, 720)
NO_TARGET = "a step whose element is unknown"
Box = tuple[float, float, float, float]


def mind2web_entries(path: Path, pictures: Pictures, on_bytes: OnBytes) -> Iterator[Entry]:
    """Satisfies EntryReader."""
    for raw in _traces(raw_records(path, on_bytes)):
        entry = Entry(where=raw.where, digest=raw.digest, text=raw.text, why_not=raw.error)
        if not raw.error:
            try:
                entry.made = _demonstration(raw.value, pictures, entry.unknown)
            except BadRecord as error:
                entry.why_not = str(error)
        yield entry


MIND2WEB = Collection("CC-BY-4.0", "Mind2Web, https://huggingface.co/datasets/osunlp/Mind2Web")
MULTIMODAL = Collection("OpenRAIL", "Multimodal-Mind2Web, https://huggingface.co/datasets/osunlp/Multimodal-Mind2Web")


def collection(paths: Sequence[Path]) -> Collection:
    return MULTIMODAL if any(path.suffix == ".parquet" for path in paths) else MIND2WEB


IMPORTER = Importer(name="mind2web", entries=mind2web_entries, acted_by="human", collection=collection)


def _traces(records: Iterator[RawRecord]) -> Iterator[RawRecord]:
    """Rows of one action each are joined to the trace that they follow one another in."""

    def trace_of(raw: RawRecord) -> Any:
        is_row = isinstance(raw.value, Mapping) and "operation" in raw.value and "actions" not in raw.value
        return raw.value.get("annotation_id") if is_row else raw.where

    for _, group in itertools.groupby(records, key=trace_of):
        rows = list(group)
        if rows[0].error or not isinstance(rows[0].value, Mapping) or "actions" in rows[0].value:
            yield from rows
            continue
        of_task = ("annotation_id", "confirmed_task", *ASIDE)
        value = {name: rows[0].value[name] for name in of_task if name in rows[0].value}
        value["actions"] = [{name: item for name, item in row.value.items() if name not in of_task} for row in rows]
        yield RawRecord(where=rows[0].where, text="\n".join(row.text for row in rows), value=value)


def _demonstration(record: Any, pictures: Pictures, unknown: list[str]) -> Demonstration:
    fields = Fields(record)
    task_id, instruction = fields.take("annotation_id", str), fields.take("confirmed_task", str)
    actions = fields.take("actions", list)
    fields.keep_aside(*ASIDE)
    steps = [_fields_of(action, unknown) for action in actions]
    unknown += fields.unknown()
    if not steps:
        raise BadRecord("`actions` is empty")
    lost: Counter[str] = Counter()
    return Demonstration(
        task_id=task_id,
        instruction=instruction,
        completed=True,
        quality={"num_actions": len(steps)},
        judged_by="human",
        load=_loader(task_id, steps, pictures, lost),
        lost=lost,
    )


def _fields_of(action: Any, unknown: list[str]) -> Mapping[str, Any]:
    fields = Fields(action, "actions[]")
    operation = Fields(_object(fields.any("operation")), "actions[].operation")
    found = {
        "uid": str(fields.any("action_uid") or ""),
        "html": str(fields.any("cleaned_html") or ""),
        "op": str(operation.any("original_op", "op") or ""),
        "plain_op": str(operation.any("op") or ""),
        "value": str(operation.any("value") or ""),
        "screenshot": fields.any("screenshot"),
        "targets": _candidates(fields, "pos_candidates", unknown),
        "others": _candidates(fields, "neg_candidates", unknown),
    }
    fields.keep_aside(*ACTION_ASIDE)
    unknown += [*fields.unknown(), *operation.unknown()]
    return found


def _object(value: Any) -> Any:
    """What may be written as JSON inside of JSON."""
    try:
        return parse_json(value) if isinstance(value, str) else value
    except NotPlain as error:
        raise BadRecord(f"{value[:60]!r} {error}") from None


def _candidates(action: Fields, name: str, unknown: list[str]) -> list[dict[str, Any]]:
    """Raises BadRecord for what is not a list of elements."""
    listed = _object(action.any(name)) or []
    if not isinstance(listed, list):
        raise BadRecord(f"`actions[].{name}` is {type(listed).__name__}, expected a list")
    return [_candidate(Fields(_object(item), f"actions[].{name}[]"), unknown) for item in listed]


def _candidate(fields: Fields, unknown: list[str]) -> dict[str, Any]:
    """An element, by its own fields; of its attributes, which are the page's, the box alone is asked for."""
    is_target = [bool(fields.any(name)) for name in ("is_original_target", "is_top_level_target")]
    found = {
        "tag": str(fields.any("tag") or ""),
        "id": str(fields.any("backend_node_id") or ""),
        "box": _box(_object(fields.any("attributes") or "{}")),
        "is_target": any(is_target),
    }
    fields.keep_aside(*CANDIDATE_ASIDE)
    unknown += fields.unknown()
    return found


def _box(attributes: Any) -> Box | None:
    """x, y, width and height; None where the element does not show."""
    try:
        x, y, width, height = (float(part) for part in str(attributes["bounding_box_rect"]).split(","))
    except (KeyError, TypeError, ValueError):
        return None
    return (x, y, width, height) if width > 0 and height > 0 and x >= 0 and y >= 0 else None


def _loader(
    task_id: str, steps: Sequence[Mapping[str, Any]], pictures: Pictures, lost: Counter[str]
) -> Callable[[], list[DemonstratedStep]]:
    def load() -> list[DemonstratedStep]:
        made = [each for step in steps if (each := _step(task_id, step, pictures, lost)) is not None]
        if not made:
            raise BadRecord("none of its steps names an element with a place")
        return made

    return load


def _step(task_id: str, step: Mapping[str, Any], pictures: Pictures, lost: Counter[str]) -> DemonstratedStep | None:
    """None for a step that no action can be made of, which is counted."""
    target = next((each for each in sorted(step["targets"], key=lambda each: not each["is_target"]) if each["box"]), None)
    if target is None:
        lost[NO_TARGET] += 1
        return None
    picture = _picture(task_id, step, pictures)
    boxes = [each["box"] for each in (*step["targets"], *step["others"]) if each["box"]]
    size_px = picture.size_px if picture else _page_size(boxes)
    x, y, width, height = target["box"]
    at = {"x": round(x + width / 2), "y": round(y + height / 2)}
    if at["x"] >= size_px[0] or at["y"] >= size_px[1]:
        lost["a step whose element lies outside of its screenshot"] += 1
        return None
    return DemonstratedStep(
        picture=picture, size_px=size_px, actions=_actions(step, at), elements=() if picture else _elements(step, target)
    )


def _actions(step: Mapping[str, Any], at: Mapping[str, int]) -> tuple[Action, ...]:
    match step["op"].upper():
        case "CLICK":
            return (Click(**at),)
        case "TYPE":
            return Click(**at), TypeText(text=step["value"])
        case "SELECT":
            return (SelectOption(option=step["value"], **at),)
        case "HOVER":
            return (MoveTo(**at),)
        case "ENTER":
            return Click(**at), Hotkey(keys=("enter",))
        case other:
            raise BadRecord(f"an operation of it is {other!r}; known are CLICK, TYPE, SELECT, HOVER and ENTER")


def _picture(task_id: str, step: Mapping[str, Any], pictures: Pictures) -> Picture | None:
    """In the record itself, or beside it under the name that collections of these screenshots use."""
    given = step["screenshot"]
    if isinstance(given, Mapping):
        if isinstance(given.get("bytes"), bytes):
            return Picture(data=given["bytes"])
        given = given.get("path")
    if isinstance(given, str) and given:
        return pictures.read(given)
    stems = (f"{task_id}-{step['uid']}", step["uid"]) if step["uid"] else ()
    return pictures.find(*(f"{stem}{suffix}" for stem in stems for suffix in (".jpg", ".png", ".jpeg", ".webp")))


def _page_size(boxes: Sequence[Box]) -> tuple[int, int]:
    right = max((x + width for x, _, width, _ in boxes), default=0)
    bottom = max((y + height for _, y, _, height in boxes), default=0)
    return max(SMALLEST_PAGE_PX[0], round(right) + 1), max(SMALLEST_PAGE_PX[1], round(bottom) + 1)


def _elements(step: Mapping[str, Any], target: Mapping[str, Any]) -> tuple[Element, ...]:
    """The target and what lies nearest to it, in reading order: so many as a prompt lists."""
    texts = node_texts(step["html"])
    to = target["box"]
    others = [each for each in (*step["targets"], *step["others"]) if each["box"] and each is not target]
    others.sort(key=lambda each: abs(each["box"][1] - to[1]) + abs(each["box"][0] - to[0]))
    shown = sorted([target, *others[: MAX_ELEMENTS - 1]], key=lambda each: (each["box"][1], each["box"][0]))
    return tuple(_element(each, texts) for each in shown)


def _element(candidate: Mapping[str, Any], texts: Mapping[str, str]) -> Element:
    x, y, width, height = candidate["box"]
    return Element(
        role=ROLES.get(candidate["tag"], "text"),
        text=texts.get(candidate["id"], ""),
        x_px=round(x + width / 2),
        y_px=round(y + height / 2),
        width_px=round(width),
        height_px=round(height),
    )


def node_texts(markup: str) -> dict[str, str]:
    """What each node of cleaned HTML says, by its backend_node_id: its label or value, and all text inside of it."""
    found: dict[str, str] = {}
    for element in _elements_of(markup):
        if node := element.get("backend_node_id"):
            label = next((value for name in LABELS if (value := element.get(name))), "")
            text = " ".join(" ".join(element.itertext()).split())
            found[node] = f"{label} {text}".strip()[:200] if text else label
    return found


def _elements_of(markup: str) -> Iterable[Any]:
    """Collections have XML. What is not is read as the HTML of a page, whose rules end some elements before their end tags."""
    try:
        root = etree.fromstring(markup.encode(errors="replace"), etree.XMLParser(resolve_entities=False))
    except etree.XMLSyntaxError:
        root = html_tree(markup)
    return () if root is None else root.iter("*")
