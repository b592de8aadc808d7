"""How a sample's chat is laid out for TRL, LLaMA-Factory and ShareGPT readers. Pure functions of a row; writing files is export.py's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
"""One sample: sample_id, weight, messages and where it comes from, as export.py reads it."""
Layout = Callable[[Row, Mapping[str, str]], dict[str, Any] | None]
"""(row, path by screenshot id) -> the record, or None where the format cannot say it."""

IMAGE_TOKEN = "<image>"
VERDICTS: dict[bool | None, str] = {True: "good", False: "bad", None: "none"}
"""As words: readers of JSON infer a column's type from the first megabytes, and take one that is null there for a column of nulls."""
SHAREGPT_NAMES = {"system": "system", "user": "human", "assistant": "gpt", "tool": "tool"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """One format. `layout(has_images=, has_prompt_loss=)` gives the function of a row: every row of a file has the same keys."""

    file_name: str
    layout: Callable[..., Layout]
    side_files: Callable[[str, bool], dict[str, str]]
    note: Callable[[bool], str]


def has_loss_on_prompt(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether anything but one closing answer is learned."""
    return not messages or messages[-1]["role"] != "assistant" or any(message["loss"] > 0 for message in messages[:-1])


def _trl(*, has_images: bool, has_prompt_loss: bool) -> Layout:
    """Prompt and completion, on which TRL puts the loss by itself; `messages` where more than the closing answer is learned."""

    def layout(row: Row, images: Mapping[str, str]) -> dict[str, Any] | None:
        messages = [_trl_message(message, has_images) for message in row["messages"]]
        record: dict[str, Any] = {"sample_id": row["sample_id"], "weight": row["weight"]} | _provenance(row)
        record |= {"messages": messages} if has_prompt_loss else {"prompt": messages[:-1], "completion": messages[-1:]}
        return record | ({"images": _paths(row, images)} if has_images else {})

    return layout


def _trl_message(message: Mapping[str, Any], has_images: bool) -> dict[str, Any]:
    if not has_images:
        return {"role": message["role"], "content": message["content"]}
    parts: list[dict[str, str]] = [{"type": "image"}] if message["screenshot_id"] is not None else []
    return {"role": message["role"], "content": [*parts, {"type": "text", "text": message["content"]}]}


def _llama_factory(*, has_images: bool, has_prompt_loss: bool) -> Layout:
    """Chats in which user and assistant take turns, as LLaMA-Factory requires; neighbours of one role are joined."""

    def layout(row: Row, images: Mapping[str, str]) -> dict[str, Any] | None:
        turns: list[dict[str, str]] = []
        for message in row["messages"]:
            role = "observation" if message["role"] == "tool" else message["role"]
            if turns and turns[-1]["role"] == role:
                turns[-1]["content"] += "\n\n" + _with_token(message)
            else:
                turns.append({"role": role, "content": _with_token(message)})
        said = turns[1:] if turns and turns[0]["role"] == "system" else turns
        asks, answers = said[0::2], said[1::2]
        is_regular = all(turn["role"] in ("user", "observation") for turn in asks) and all(turn["role"] == "assistant" for turn in answers)
        if not said or len(said) % 2 or not is_regular:
            return None
        return {"messages": turns, **_provenance(row)} | ({"images": _paths(row, images)} if has_images else {})

    return layout


def _sharegpt(*, has_images: bool, has_prompt_loss: bool) -> Layout:
    """`conversations` with `from` and `value`; `weight` is the loss weight of a turn, which Axolotl reads and others pass over. Beside them
    what the sample is, as far as `flywheel import demonstrations sharegpt` can make it again from that."""

    def layout(row: Row, images: Mapping[str, str]) -> dict[str, Any] | None:
        turns = [
            {"from": SHAREGPT_NAMES[message["role"]], "value": _with_token(message), "weight": message["loss"]}
            for message in row["messages"]
        ]
        what = {"origin": row["origin"], "domain": row["domain"], "verdict": VERDICTS[row["verdict"]]}
        return {"id": row["sample_id"], "conversations": turns, **what, **_provenance(row)} | (
            {"images": _paths(row, images)} if has_images else {}
        )

    return layout


def _provenance(row: Row) -> dict[str, str]:
    """Columns that readers skip: they say what a sample may be used for."""
    return {"source": row["source"], "licence": row["licence"]}


def _with_token(message: Mapping[str, Any]) -> str:
    text: str = message["content"]
    return f"{IMAGE_TOKEN}{text}" if message["screenshot_id"] is not None else text


def _paths(row: Row, images: Mapping[str, str]) -> list[str]:
    """Pictures in the order of the messages that show them. Raises KeyError for a screenshot that is not stored."""
    return [images[message["screenshot_id"]] for message in row["messages"] if message["screenshot_id"] is not None]


def _dataset_info(dataset: str, has_images: bool) -> dict[str, str]:
    columns = {"messages": "messages"} | ({"images": "images"} if has_images else {})
    tags = {
        "role_tag": "role",
        "content_tag": "content",
        "user_tag": "user",
        "assistant_tag": "assistant",
        "system_tag": "system",
        "observation_tag": "observation",
    }
    info = {f"flywheel_{dataset}": {"file_name": "data.json", "formatting": "sharegpt", "columns": columns, "tags": tags}}
    return {"dataset_info.json": json.dumps(info, indent=2) + "\n"}


def _nothing_beside(dataset: str, has_images: bool) -> dict[str, str]:
    return {}


CHAT_FORMATS: dict[str, ChatFormat] = {
    "trl": ChatFormat(
        file_name="train.jsonl",
        layout=_trl,
        side_files=_nothing_beside,
        note=lambda has_prompt_loss: (
            "conversational language modelling: every token is learned"
            if has_prompt_loss
            else "conversational prompt-completion: the loss is on the completion"
        ),
    ),
    "llama-factory": ChatFormat(
        file_name="data.json",
        layout=_llama_factory,
        side_files=_dataset_info,
        note=lambda has_prompt_loss: (
            "set train_on_prompt: true, the prompts are learned as well"
            if has_prompt_loss
            else "set mask_history: true, only the closing answer is learned"
        ),
    ),
    "sharegpt": ChatFormat(
        file_name="data.jsonl", layout=_sharegpt, side_files=_nothing_beside, note=lambda has_prompt_loss: "weight is a turn's loss weight"
    ),
}
