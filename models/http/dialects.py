"""How each kind of server is asked for an answer, and how its answer is read: one class a route. Nothing here sends anything.

Chat          POST /v1/chat/completions  messages in; ids and log-probabilities where the server has extensions for them
Completions   POST /v1/completions       token ids in, so that nothing is read anew
SglangTokens  POST /generate             token ids in, SGLang's own route, which gives ids and log-probabilities

Which routes and fields a kind of server has, and how it is told to load weights, is its entry in KINDS, at the end.

Fields are those of the servers' sources and documents as of November 2026: vLLM's `return_token_ids`, `prompt_token_ids`, `token_ids`
(vllm/entrypoints), SGLang's `meta_info.output_token_logprobs` (sglang/srt/managers), llama.cpp's `id` beside each log-probability.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from agent.policy import Message, Sampling
from models.http.config import ServerKind
from warehouse.errors import ModelError

BROKEN_OFF = ("abort", "error")
"""Reasons of an end that is the server's fault, as when it drops what runs to take new weights."""
OWN_FIELD = "flywheel"
"""Where our server says what no other does: what it gives, and whose weights wrote an answer."""
UNNAMED = "default"
TOKEN_ID_PREFIX = "token_id:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One answer wanted. `extras` are the fields beyond the common ones that the server was found to take."""

    model: str
    messages: Sequence[Message]
    images: Mapping[str, bytes]
    token_ids: Sequence[int] | None
    sampling: Sampling
    stop: Sequence[str]
    extras: Mapping[str, Any]
    conversation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server said. None where it does not tell. `top_logprob` is that of the likeliest first token, where it was asked for."""

    text: str
    prompt_token_ids: tuple[int, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    top_logprob: float | None = None
    versions: tuple[int, ...] = ()
    policy_id: str | None = None


class Dialect(Protocol):
    path: str
    extras: Sequence[Mapping[str, Any]]
    """Sets of further fields, the richest first: what a server does not take, it may refuse."""
    top_fields: Mapping[str, Any]
    """Fields that ask for the likeliest token's log-probability."""

    def body(self, ask: Ask) -> dict[str, Any]: ...

    def read(self, data: Mapping[str, Any]) -> Answer:
        """Raises ModelError for an answer of another form."""
        ...

    def is_broken_off(self, data: Any) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How a kind of server is told to answer with other weights."""

    takes: Literal["checkpoints", "adapters"]
    path: str
    body: Callable[[str, str, int], dict[str, Any]]
    """Of the folder, the checkpoint's id, and its version."""
    confirmed_by: str | None = None
    """Field of its answer without which it did not load them; None: the status says all."""
    forbidden_code: str | None = None
    """What it calls the refusal of a folder that it may not load from; None: it cannot be asked in advance."""
    answers_as: str | None = None
    """Name of the model that has the weights then; None: as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is known of a kind of server before it is asked anything."""

    owner: str | None = None
    """Who owns its models, as its list of them says."""
    declares_in: str | None = None
    """Field of that list in which it says itself what it gives; None: it is found out."""
    neutral: Mapping[str, Any] = field(default_factory=dict)
    """Fields that leave sampling as it was asked for, where a server would take more from the model's generation_config."""
    chat_fields: Mapping[str, Any]
    """Fields with which a chat completion tells all that it can of tokens."""
    takes_conversation: bool = False
    """Whether it is told which conversation a prompt continues; others find common beginnings by themselves."""
    tokens: Callable[[Kind], Dialect]
    """Its route for prompts of token ids."""
    loading: Loading | None = None


def kind_owning(owner: Any) -> ServerKind:
    """The kind of server whose list of models names this owner; openai where none does."""
    return next((name for name, kind in KINDS.items() if kind.owner is not None and kind.owner == owner), "openai")


def dialect_for(kind: ServerKind, *, sends_token_ids: bool) -> Dialect:
    return KINDS[kind].tokens(KINDS[kind]) if sends_token_ids else Chat(KINDS[kind])


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
            raise ModelError(f"a chat completion without a message came back: {str(data)[:200]}")
        ids, logprobs, top_logprob = _entry_tokens((choice.get("logprobs") or {}).get("content"))
        meta_ids, meta_logprobs = _meta_tokens(choice.get("meta_info"))
        if meta_ids is not None:
            ids, logprobs = meta_ids, meta_logprobs
        return _answer(
            data, choice, text=str(message.get("content") or ""), token_ids=_ids(choice.get("token_ids")) or ids, logprobs=logprobs,
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
            raise ModelError(f"a completion without a text came back: {str(data)[:200]}")
        given = choice.get("logprobs") or {}
        if (entries := given.get("content")) is not None:  # llama.cpp writes them as in a chat
            ids, logprobs, top_logprob = _entry_tokens(entries)
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
            "temperature": sampling.temperature, "top_p": sampling.top_p, "max_new_tokens": sampling.max_new_tokens,
            "sampling_seed": sampling.seed, "stop": list(ask.stop),
        }  # fmt: skip
        return {"input_ids": _wanted_ids(ask), "sampling_params": parameters} | dict(ask.extras)

    def read(self, data: Mapping[str, Any]) -> Answer:
        meta = data.get("meta_info")
        if not isinstance(data.get("text"), str) or not isinstance(meta, dict):
            raise ModelError(f"an answer of /generate without text and meta_info came back: {str(data)[:200]}")
        ids, logprobs = _meta_tokens(meta)
        top = meta.get("output_top_logprobs")
        return Answer(
            text=data["text"], token_ids=ids if ids is not None else _ids(data.get("output_ids")), logprobs=logprobs,
            top_logprob=float(top[0][0][0]) if top and top[0] else None, policy_id=_named(meta),
        )

    def is_broken_off(self, data: Any) -> bool:
        reason = (data.get("meta_info") or {}).get("finish_reason") if isinstance(data, dict) else None
        return isinstance(reason, dict) and reason.get("type") in BROKEN_OFF


def _common(ask: Ask, kind: Kind) -> dict[str, Any]:
    sampling = ask.sampling
    fields: dict[str, Any] = {
        "max_tokens": sampling.max_new_tokens, "temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed,
    }  # fmt: skip
    if ask.stop:
        fields["stop"] = list(ask.stop)
    if kind.takes_conversation and ask.conversation is not None:
        fields["conversation"] = ask.conversation
    return fields | dict(kind.neutral)


def _wanted_ids(ask: Ask) -> list[int]:
    if ask.images:
        raise ModelError("a prompt with screenshots cannot be sent as token ids over HTTP: set `send: messages` for this server")
    if ask.token_ids is None:
        raise ModelError("token ids are to be sent, but the engine was opened without a codec: open it with a checkpoint's folder")
    return list(ask.token_ids)


def _content(message: Message, images: Mapping[str, bytes]) -> str | list[dict[str, Any]]:
    """A message's text, or its picture and then its text, the order in which vision-language templates put them."""
    if message.screenshot_id is None:
        return message.content
    image = images.get(message.screenshot_id)
    if image is None:
        raise ModelError(f"a message names the screenshot {message.screenshot_id}, whose image the prompt does not hold")
    kind = "jpeg" if image[:2] == b"\xff\xd8" else "webp" if image[8:12] == b"WEBP" else "png"
    url = f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
    text = [{"type": "text", "text": message.content}] if message.content else []
    return [{"type": "image_url", "image_url": {"url": url}}, *text]


def _choice(data: Any) -> dict[str, Any]:
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ModelError(f"an answer without choices came back: {str(data)[:200]}")
    return dict(choices[0])


def _answer(
    data: Mapping[str, Any], choice: Mapping[str, Any], *, text: str, token_ids: tuple[int, ...] | None, logprobs: tuple[float, ...] | None,
    top_logprob: float | None,
) -> Answer:
    """Prompt ids stand at the top of a chat completion and in the choice of a completion; ours tells versions in `flywheel`."""
    own = choice.get(OWN_FIELD) or {}
    prompt = choice.get("prompt_token_ids") or data.get("prompt_token_ids") or (choice.get("meta_info") or {}).get("prompt_token_ids")
    if token_ids is not None and logprobs is not None and len(token_ids) != len(logprobs):
        raise ModelError(f"a server gave {len(token_ids)} token ids and {len(logprobs)} log-probabilities for one answer")
    return Answer(
        text=text, prompt_token_ids=_ids(prompt), token_ids=token_ids, logprobs=logprobs, top_logprob=top_logprob,
        versions=tuple(own.get("versions") or ()), policy_id=own.get("policy_id") or _named(data.get("metadata")),
    )


def _named(meta: Any) -> str | None:
    """What SGLang calls the weights it has when an answer ends: the name they were loaded under, which is how ours are told from another
    client's. Those that it started with have none."""
    name = meta.get("weight_version") if isinstance(meta, dict) else None
    return str(name) if name not in (None, UNNAMED) else None


def _ids(value: Any) -> tuple[int, ...] | None:
    return None if value is None else tuple(int(one) for one in value)


def _entry_tokens(entries: Any) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None, float | None]:
    """Ids, log-probabilities, and that of the likeliest first token. llama.cpp writes the id beside each log-probability; vLLM writes
    `token_id:7` as the token where it was started so."""
    if entries is None:
        return None, None, None
    if entries and all(isinstance(entry.get("id"), int) for entry in entries):
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


_CHAT_IDS = {"logprobs": True, "return_token_ids": True}
_PLAIN_SAMPLING = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
KINDS: Mapping[ServerKind, Kind] = {
    "flywheel": Kind(
        owner="flywheel", declares_in=OWN_FIELD, chat_fields=_CHAT_IDS, takes_conversation=True, tokens=Completions,
        loading=Loading(
            takes="checkpoints", path="/v1/weights", confirmed_by="policy_id", forbidden_code="folder_not_allowed",
            body=lambda folder, checkpoint_id, version: {"folder": folder, "policy_id": checkpoint_id, "version": version},
        ),
    ),
    "vllm": Kind(
        owner="vllm", neutral=_PLAIN_SAMPLING, chat_fields=_CHAT_IDS, tokens=Completions,
        loading=Loading(
            takes="adapters", path="/v1/load_lora_adapter", answers_as="policy",
            body=lambda folder, checkpoint_id, version: {"lora_name": "policy", "lora_path": folder, "load_inplace": True},
        ),
    ),
    "sglang": Kind(
        owner="sglang", neutral=_PLAIN_SAMPLING, tokens=SglangTokens,
        chat_fields={"logprobs": True, "return_meta_info": True, "return_prompt_token_ids": True},
        loading=Loading(
            takes="checkpoints", path="/update_weights_from_disk", confirmed_by="success",
            body=lambda folder, checkpoint_id, version: {
                "model_path": folder, "weight_version": checkpoint_id, "abort_all_requests": False
            },
        ),
    ),
    "openai": Kind(chat_fields=_CHAT_IDS, tokens=Completions),
}  # fmt: skip
"""All that differs between kinds of servers."""
