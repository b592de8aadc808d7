"""Probing a policy server's capabilities: its list of models, then answers of one token. Done once, when an engine is created.

A server of ours declares them in its list of models. Any other is probed by its answers, since servers of one kind run with different
options: vLLM's log-probabilities are of the distribution before temperature and top-p unless it runs with
`--logprobs-mode processed_logprobs`; SGLang's are after temperature. The likeliest first token's log-probability shows which: under
another temperature it changes, under a tiny top-p it becomes 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agent.policy.policy import Message, Sampling
from models.checkpoints.checkpoint import read_card
from models.checkpoints.model_files import CARD_FILE
from models.families.chat import ChatCodec
from models.http.client import HttpClient, Refused
from models.http.config import Capabilities, HttpEngineConfig, ServerKind, Way
from models.http.dialects import Answer, Ask, Dialect, Loading
from models.http.kinds import KINDS, MODELS, WEIGHT_INFO, dialects_for, kind_owning
from models.http.routes import VllmTokens, labelled
from warehouse.core.errors import ConfigError, ModelError

QUESTION = (Message(role="user", content="Say something."),)
TOLERANCE = 1e-3
"""Log-probabilities that differ by less are the same, in nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What a server gives, and the route and fields to ask for it with."""

    gives: Capabilities
    dialect: Dialect
    extras: Mapping[str, Any]
    has_named_weights: bool = False
    """Whether the server names weights that it was handed since it started."""
    has_seen_sampling: bool = True
    """Whether it could be seen what the log-probabilities follow: not where the first token is certain."""


async def probe(client: HttpClient, config: HttpEngineConfig, codec: ChatCodec | None) -> Probed:
    """Raises ModelError where the server cannot answer at all, ConfigError where it does not load weights as the settings say."""
    entry = await _model_entry(client, config)
    model = config.model or str(entry.get("id") or "")
    kind = config.server if config.server != "auto" else kind_owning(entry.get("owned_by"))
    dialects = dialects_for(kind, sends_token_ids=config.send == "token_ids")
    way = await _way(client, config, kind)
    if (declares_in := KINDS[kind].declares_in) is not None:
        return Probed(gives=_declared(entry.get(declares_in), model, way), dialect=dialects[0], extras=dialects[0].extras[0])
    ids = codec.encode(QUESTION).token_ids if config.send == "token_ids" and codec is not None else None
    dialect, extras, answer = await _richest(client, dialects, model, ids)
    asking = _Asking(client, dialect, model, ids)
    follows = (False, False) if answer.logprobs is None else await asking.what_logprobs_follow(extras)
    follows_temperature, follows_top_p = follows or (False, False)
    loaded_id = answer.policy_id or await _loaded_id(client, kind)
    found = Capabilities.model_validate(
        {
            "server": kind,
            "model": model,
            "policy_id": loaded_id or _policy_id(entry, model),
            "max_context": entry.get("max_model_len"),
            "prompt_token_ids": ids is not None or answer.prompt_token_ids is not None,
            "token_ids": answer.token_ids is not None,
            "logprobs": answer.logprobs is not None,
            "logprobs_follow_temperature": follows_temperature,
            "logprobs_follow_top_p": follows_top_p,
            "versions": isinstance(dialect, VllmTokens) and way != "lora",
            "loads": "nothing" if way is None else KINDS[kind].ways[way].takes,
            "weights": way,
        }
    )
    is_named, is_seen = loaded_id is not None, follows is not None
    return Probed(gives=found, dialect=dialect, extras=extras, has_named_weights=is_named, has_seen_sampling=is_seen)


async def _way(client: HttpClient, config: HttpEngineConfig, kind: ServerKind) -> Way | None:
    """The way by which weights are handed over: what the settings say, else the first that the server has; over the network only where the
    settings say so, since a server is started for it."""
    ways = KINDS[kind].ways
    for name, loading in ways.items():
        if config.weights == name or (config.weights == "auto" and not loading.is_sent):
            if loading.needs is None or await _has(client, loading.needs):
                return name
            if config.weights == name:
                raise ConfigError(
                    f"{config.base_url} does not answer {loading.needs}, which `weights: {name}` needs: start vLLM with "
                    "VLLM_SERVER_DEV_MODE=1 (docs/serving.md), or set `weights: auto`"
                )
    if config.weights != "auto":
        raise ConfigError(f"{config.base_url} ({kind}) takes no weights by {config.weights!r}: it knows {', '.join(ways) or 'no way'}")
    return None


async def _has(client: HttpClient, path: str) -> bool:
    try:
        await client.get(path)
    except Refused:
        return False
    return True


async def _loaded_id(client: HttpClient, kind: ServerKind) -> str | None:
    """The checkpoint that was loaded since a server started, where it keeps the name."""
    if all(loading.needs != WEIGHT_INFO for loading in KINDS[kind].ways.values()):
        return None
    try:
        return labelled((await client.get(WEIGHT_INFO)).get("weight_version"))[0]
    except Refused:
        return None


async def is_unnamed(client: HttpClient, loading: Loading) -> bool:
    """Whether a server that names its weights on request has those that it started with."""
    if loading.needs != WEIGHT_INFO:
        return False
    try:
        return labelled((await client.get(WEIGHT_INFO)).get("weight_version"))[0] is None
    except Refused:
        return True  # it was started without its development mode


async def may_load_from(client: HttpClient, gives: Capabilities, folder: Path) -> bool:
    """Whether a server may load from below a folder, as far as it says. Where possible it is probed with a folder that does not exist, so
    that nothing changes: it checks permission first. Raises EngineUnreachable, ModelError."""
    loading = None if gives.weights is None else KINDS[gives.server].ways[gives.weights]
    if gives.loads != "checkpoints" or loading is None or loading.forbidden_code is None:
        return gives.loads == "checkpoints"
    try:
        await client.post(loading.path, loading.body(str(folder.absolute() / "none-there"), "none", 0, "none"))
    except Refused as error:
        return error.code != loading.forbidden_code
    return True


async def _model_entry(client: HttpClient, config: HttpEngineConfig) -> dict[str, Any]:
    """The entry of the requests' model in the server's list. Without a list the configuration's model is used."""
    try:
        listed = (await client.get(MODELS)).get("data")
    except Refused as error:
        if config.model is None:
            raise ConfigError(f"{error}; the server does not list its models: set `model`") from error
        return {}
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    for entry in entries:
        if config.model == entry.get("id"):
            return entry
    entries = [entry for entry in entries if not entry.get("parent")]  # adapters of the others, perhaps another client's
    names = ", ".join(str(entry.get("id")) for entry in entries) or "none"
    if config.model is None and len(entries) != 1:
        raise ConfigError(f"{config.base_url} lists {len(entries)} models ({names}): set `model` to one of them")
    if config.model is None:
        return entries[0]
    # Some serve what they do not list: a folder, or a model that they load when it is asked for.
    return {"owned_by": entries[0].get("owned_by")} if entries else {}


def _policy_id(entry: Mapping[str, Any], model: str) -> str:
    """The checkpoint that a server was started on, where it names a folder that exists here too: vLLM has it as the model's `root`, others
    as the model's name. Else the model's name."""
    for place in (entry.get("root"), model):
        if isinstance(place, str) and Path(place, CARD_FILE).is_file():
            return read_card(Path(place)).checkpoint_id
    return model


def _declared(said: Any, model: str, way: Way | None) -> Capabilities:
    try:
        return Capabilities.model_validate({"model": model} | dict(said or {}) | {"weights": way})
    except ValidationError as error:
        raise ModelError(f"the server's capabilities cannot be read: is it Flywheel's, of this version? {error}") from error


async def _richest(
    client: HttpClient, dialects: Sequence[Dialect], model: str, ids: Sequence[int] | None
) -> tuple[Dialect, Mapping[str, Any], Answer]:
    """The route that gives most of those that the server has."""
    *optional, last = dialects
    for dialect in optional:
        try:
            return dialect, *await _Asking(client, dialect, model, ids).richest()
        except Refused:
            continue  # it was started without this route
    return last, *await _Asking(client, last, model, ids).richest()


class _Asking:
    """Answers of one token each."""

    def __init__(self, client: HttpClient, dialect: Dialect, model: str, token_ids: Sequence[int] | None) -> None:
        self._client, self._dialect, self._model, self._token_ids = client, dialect, model, token_ids

    async def richest(self) -> tuple[Mapping[str, Any], Answer]:
        """The richest set of fields that the server takes, and what it gave for it."""
        *optional, last = self._dialect.extras
        for extras in optional:
            try:
                return extras, await self._ask(extras)
            except Refused:
                continue  # it refuses fields that it does not know
        return last, await self._ask(last)

    async def what_logprobs_follow(self, extras: Mapping[str, Any]) -> tuple[bool, bool] | None:
        """Whether temperature, and whether top-p, change log-probabilities; None where it cannot be seen, and they are taken not to."""
        asked = dict(extras) | dict(self._dialect.top_fields)
        try:
            plain, cool, narrow = [
                (await self._ask(asked, temperature=temperature, top_p=top_p)).top_logprob
                for temperature, top_p in ((1.0, 1.0), (0.5, 1.0), (1.0, 0.01))
            ]
        except Refused:
            return False, False
        if plain is None or cool is None or narrow is None or plain > -TOLERANCE:
            return None
        return abs(cool - plain) > TOLERANCE, narrow > -TOLERANCE

    async def _ask(self, extras: Mapping[str, Any], *, temperature: float = 1.0, top_p: float = 1.0) -> Answer:
        ask = Ask(
            model=self._model,
            messages=QUESTION,
            images={},
            token_ids=self._token_ids,
            stop=(),
            extras=extras,
            sampling=Sampling(temperature=temperature, top_p=top_p, max_new_tokens=1),
        )
        return self._dialect.read(await self._client.post(self._dialect.path, self._dialect.body(ask)))
