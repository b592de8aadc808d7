"""How a server is asked for an answer, and how its answer is read: one class a route. Nothing here sends anything.

Chat          POST /v1/chat/completions  messages in; ids and log-probabilities where the server has extensions for them
Completions   POST /v1/completions       token ids in, so that nothing is tokenized again
SglangTokens  POST /generate             token ids in, SGLang's own route, which gives ids and log-probabilities
VllmTokens    POST /inference/v1/generate  token ids in, vLLM's own route, which says whose weights wrote each token (`--enable-scale-out`)

Fields are those of vLLM 0.32.0 (`return_token_ids`, `prompt_token_ids`, `token_ids`), which tests run, and of the sources and documents of
others as of November 2026: llama.cpp's `id` beside each log-probability, which a test runs too, and SGLang's
`meta_info.output_token_logprobs` (sglang/srt/managers).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from agent.policy.policy import Message
from models.http.dialects import Answer, Ask, Kind
from warehouse.core.errors import ModelError

BROKEN_OFF = ("abort", "error")
"""Reasons of an end that is the server's fault, as when it drops what runs to take new weights."""
OWN_FIELD = "flywheel"
"""Where our server says what no other does: what it gives, and whose weights wrote an answer."""
UNNAMED, UNKNOWN = "default", "unknown"
"""What servers call the weights that they started with; what we call those of a server whose loading failed half-way."""
TOKEN_ID_PREFIX = "token_id:"


class Chat:
    path = "/v1/chat/completions"
    top_fields: Mapping[str, Any] = {"logprobs": True, "top_logprobs": 1}

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.extras: Sequence[Mapping[str, Any]] = (kind.chat_fields, {"logprobs": True}, {})

    def body(self, ask: Ask) -> dict[str, Any]:
        messages = [{"role": message.role, "content": _content(message, ask.images)} for message in ask.messages]
        return {"model": ask.model, "messages": messages} | _common(ask, self._kind) | dict(ask.extras)

    def read(self, data: Mapping[str, Any]) -> Answer:
        choice = _choice(data)
        message = choice.get("message")
        if not isinstance(message, dict):
            raise ModelError(f"the server returned a chat completion without a message: {str(data)[:200]}")
        ids, logprobs, top_logprob = _entry_tokens((choice.get("logprobs") or {}).get("content"), data)
        meta_ids, meta_logprobs = _meta_tokens(choice.get("meta_info"))
        if meta_ids is not None:
            ids, logprobs = meta_ids, meta_logprobs
        return _answer(
            data,
            choice,
            text=str(message.get("content") or ""),
            token_ids=_ids(choice.get("token_ids")) or ids,
            logprobs=logprobs,
            top_logprob=top_logprob,
        )

    def is_broken_off(self, data: Any) -> bool:
        return _choice(data).get("finish_reason") in BROKEN_OFF


class Completions:
    path = "/v1/completions"
    top_fields: Mapping[str, Any] = {"logprobs": 1}

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.extras: Sequence[Mapping[str, Any]] = ({"logprobs": 1, "return_token_ids": True}, {"logprobs": 1}, {})

    def body(self, ask: Ask) -> dict[str, Any]:
        return {"model": ask.model, "prompt": _wanted_ids(ask)} | _common(ask, self._kind) | dict(ask.extras)

    def read(self, data: Mapping[str, Any]) -> Answer:
        choice = _choice(data)
        if not isinstance(choice.get("text"), str):
            raise ModelError(f"the server returned a completion without a text: {str(data)[:200]}")
        given = choice.get("logprobs") or {}
        if (entries := given.get("content")) is not None:  # llama.cpp writes them as in a chat
            ids, logprobs, top_logprob = _entry_tokens(entries, data)
        else:
            ids, numbers, top = _ids_of_names(given.get("tokens")), given.get("token_logprobs"), given.get("top_logprobs")
            logprobs = None if numbers is None or None in numbers else tuple(float(number) for number in numbers)
            top_logprob = max(top[0].values()) if top and top[0] else None
        return _answer(
            data, choice, text=choice["text"], token_ids=_ids(choice.get("token_ids")) or ids, logprobs=logprobs, top_logprob=top_logprob
        )

    def is_broken_off(self, data: Any) -> bool:
        return _choice(data).get("finish_reason") in BROKEN_OFF


class SglangTokens:
    path = "/generate"
    extras: Sequence[Mapping[str, Any]] = ({"return_logprob": True}, {})
    top_fields: Mapping[str, Any] = {"return_logprob": True, "top_logprobs_num": 1}

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def body(self, ask: Ask) -> dict[str, Any]:
        sampling = ask.sampling
        parameters = dict(self._kind.neutral) | {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_new_tokens": sampling.max_new_tokens,
            "sampling_seed": sampling.seed,
            "stop": list(ask.stop),
        }
        return {"input_ids": _wanted_ids(ask), "sampling_params": parameters} | dict(ask.extras)

    def read(self, data: Mapping[str, Any]) -> Answer:
        meta = data.get("meta_info")
        if not isinstance(data.get("text"), str) or not isinstance(meta, dict):
            raise ModelError(f"the server returned an answer of /generate without text and meta_info: {str(data)[:200]}")
        ids, logprobs = _meta_tokens(meta)
        top = meta.get("output_top_logprobs")
        return Answer(
            text=data["text"],
            token_ids=ids if ids is not None else _ids(data.get("output_ids")),
            logprobs=logprobs,
            top_logprob=float(top[0][0][0]) if top and top[0] else None,
            policy_id=_named(meta),
            is_unnamed=_is_unnamed(meta),
        )

    def is_broken_off(self, data: Any) -> bool:
        reason = (data.get("meta_info") or {}).get("finish_reason") if isinstance(data, dict) else None
        return isinstance(reason, dict) and reason.get("type") in BROKEN_OFF


class VllmTokens:
    path = "/inference/v1/generate"
    extras: Sequence[Mapping[str, Any]] = ({"logprobs": 0}, {})
    top_fields: Mapping[str, Any] = {"logprobs": 1}

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def body(self, ask: Ask) -> dict[str, Any]:
        sampling = _common(ask, self._kind) | dict(ask.extras)
        return {"model": ask.model, "token_ids": _wanted_ids(ask), "sampling_params": sampling, "output_mode": "text"}

    def read(self, data: Mapping[str, Any]) -> Answer:
        choice = _choice(data)
        if not isinstance(choice.get("text"), str) or choice.get("token_ids") is None:
            raise ModelError(f"the server returned an answer of {self.path} without text and token_ids: {str(data)[:200]}")
        ids = tuple(int(one) for one in choice["token_ids"])
        _, logprobs, top_logprob = _entry_tokens((choice.get("logprobs") or {}).get("content"), data)
        named = [labelled(span["version"]) for span in choice.get("weight_versions") or [] for _ in range(span["start"], span["end"])]
        versions = tuple(version for _, version in named if version is not None)
        return Answer(
            text=choice["text"],
            token_ids=ids,
            logprobs=logprobs,
            top_logprob=top_logprob,
            versions=versions if len(versions) == len(ids) else (),
            policy_id=named[-1][0] if named else None,
            is_unnamed=bool(named) and named[-1][0] is None,
        )

    def is_broken_off(self, data: Any) -> bool:
        return _choice(data).get("finish_reason") in BROKEN_OFF


def label(checkpoint_id: str, version: int) -> str:
    """The name that weights are loaded under where a server keeps one text for them."""
    return f"{checkpoint_id}@{version}"


def labelled(name: Any) -> tuple[str | None, int | None]:
    """The checkpoint's id and the version that such a name holds; of weights that a server started with, neither."""
    if name in (None, UNNAMED):
        return None, None
    checkpoint_id, _, version = str(name).rpartition("@")
    return (checkpoint_id, int(version)) if checkpoint_id and version.isdecimal() else (str(name), None)


def _common(ask: Ask, kind: Kind) -> dict[str, Any]:
    sampling = ask.sampling
    fields: dict[str, Any] = {
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
    }
    if ask.stop:
        fields["stop"] = list(ask.stop)
    if kind.takes_conversation and ask.conversation is not None:
        fields["conversation"] = ask.conversation
    return fields | dict(kind.neutral)


def _wanted_ids(ask: Ask) -> list[int]:
    if ask.images:
        raise ModelError("a prompt with screenshots cannot be sent as token ids over HTTP: set `send: messages` for this server")
    if ask.token_ids is None:
        raise ModelError("`send: token_ids` needs a codec: create the engine with a checkpoint's folder")
    return list(ask.token_ids)


def _content(message: Message, images: Mapping[str, bytes]) -> str | list[dict[str, Any]]:
    """A message's text, or its picture and then its text, the order in which vision-language templates put them."""
    if message.screenshot_id is None:
        return message.content
    image = images.get(message.screenshot_id)
    if image is None:
        raise ModelError(f"a message names the screenshot {message.screenshot_id}, but the prompt lacks its image")
    kind = "jpeg" if image[:2] == b"\xff\xd8" else "webp" if image[8:12] == b"WEBP" else "png"
    url = f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
    text = [{"type": "text", "text": message.content}] if message.content else []
    return [{"type": "image_url", "image_url": {"url": url}}, *text]


def _choice(data: Any) -> dict[str, Any]:
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ModelError(f"the server returned an answer without choices: {str(data)[:200]}")
    return dict(choices[0])


def _answer(
    data: Mapping[str, Any],
    choice: Mapping[str, Any],
    *,
    text: str,
    token_ids: tuple[int, ...] | None,
    logprobs: tuple[float, ...] | None,
    top_logprob: float | None,
) -> Answer:
    """Prompt ids stand at the top of a chat completion and in the choice of a completion; ours returns versions in `flywheel`."""
    own = choice.get(OWN_FIELD) or {}
    prompt = choice.get("prompt_token_ids") or data.get("prompt_token_ids") or (choice.get("meta_info") or {}).get("prompt_token_ids")
    if token_ids is not None and logprobs is not None and len(token_ids) != len(logprobs):
        raise ModelError(f"the server returned {len(token_ids)} token ids and {len(logprobs)} log-probabilities for one answer")
    return Answer(
        text=text,
        prompt_token_ids=_ids(prompt),
        token_ids=token_ids,
        logprobs=logprobs,
        top_logprob=top_logprob,
        versions=tuple(own.get("versions") or ()),
        policy_id=own.get("policy_id") or _named(data.get("metadata")),
        is_unnamed=_is_unnamed(data.get("metadata")),
    )


def _named(meta: Any) -> str | None:
    """SGLang's name of the weights it has when an answer ends: the name they were loaded under, which distinguishes ours from another
    client's. Those that it started with have none."""
    name = meta.get("weight_version") if isinstance(meta, dict) else None
    return str(name) if name not in (None, UNNAMED) else None


def _is_unnamed(meta: Any) -> bool:
    return isinstance(meta, dict) and meta.get("weight_version") == UNNAMED


def _ids(value: Any) -> tuple[int, ...] | None:
    return None if value is None else tuple(int(one) for one in value)


def _entry_tokens(entries: Any, data: Mapping[str, Any]) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None, float | None]:
    """Ids, log-probabilities, and that of the likeliest first token. llama.cpp writes the id beside each log-probability, but for tokens
    that end inside a character, which it leaves out: where it counts more tokens than it lists, there are none. vLLM writes `token_id:7` as
    the token where it was started so."""
    if entries is None:
        return None, None, None
    if entries and all(isinstance(entry.get("id"), int) for entry in entries):
        if len(entries) != (data.get("usage") or {}).get("completion_tokens", len(entries)):
            return None, None, None
        ids: tuple[int, ...] | None = tuple(entry["id"] for entry in entries)
    else:
        ids = _ids_of_names([entry.get("token") for entry in entries])
    top = entries[0].get("top_logprobs") if entries else None
    return ids, tuple(float(entry["logprob"]) for entry in entries), float(top[0]["logprob"]) if top else None


def _ids_of_names(names: Any) -> tuple[int, ...] | None:
    if not names or not all(isinstance(name, str) and name.startswith(TOKEN_ID_PREFIX) for name in names):
        return None
    return tuple(int(name.removeprefix(TOKEN_ID_PREFIX)) for name in names)


def _meta_tokens(meta: Any) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None]:
    """Ids and log-probabilities of SGLang: [log-probability, id, text or null] for each token."""
    entries = meta.get("output_token_logprobs") if isinstance(meta, dict) else None
    if entries is None:
        return None, None
    return tuple(int(entry[1]) for entry in entries), tuple(float(entry[0]) for entry in entries)
