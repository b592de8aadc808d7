"""Which routes and fields each kind of server has, and how it loads weights: the table KINDS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.http.config import ServerKind
from models.http.dialects import Dialect, Kind, Loading, Request
from models.http.routes import OWN_FIELD, UNKNOWN, Chat, Completions, SglangTokens, VllmTokens, label

_CHAT_IDS = {"logprobs": True, "return_token_ids": True}
_PLAIN_SAMPLING = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
_LLAMA_CPP_SAMPLING = {
    **{"top_k": 0, "min_p": 0.0, "typical_p": 1.0, "top_n_sigma": -1.0, "xtc_probability": 0.0, "mirostat": 0, "dynatemp_range": 0.0},
    **{"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "dry_multiplier": 0.0},
}
"""Unless a request says otherwise llama.cpp samples from the 40 likeliest tokens with at least 0.05 of the likeliest one's probability, and
as a model's file or its command line says."""
MODELS = "/v1/models"
WEIGHT_INFO, SERVER_INFO = "/weight_info", "/server_info"
"""Where vLLM, in its development mode, names the weights that it has, and reports how it was started."""


def _vllm_forgets(checkpoint_id: str, version: int) -> Sequence[Request]:
    """Nothing that other weights computed is used again: the prefixes in its cache, those of answers under way among them, which are read
    again, and the pictures. Then the new name."""
    return (
        ("/reset_prefix_cache?reset_running_requests=true", {}),
        ("/reset_encoder_cache", {}),
        ("/update_weight_version", {"new_version": label(checkpoint_id, version)}),
    )


_VLLM_HELD: Mapping[str, Any] = {
    "needs": WEIGHT_INFO,
    "holds": "/pause?mode=keep",
    "holds_when_finished": "/pause?mode=wait",
    "releases": "/resume",
    "after": _vllm_forgets,
    "if_lost": (("/update_weight_version", {"new_version": UNKNOWN}),),
}
KINDS: Mapping[ServerKind, Kind] = {
    "flywheel": Kind(
        owner="flywheel",
        declares_in=OWN_FIELD,
        chat_fields=_CHAT_IDS,
        takes_conversation=True,
        tokens=(Completions,),
        ways={
            "disk": Loading(
                takes="checkpoints",
                path="/v1/weights",
                confirmed_by="policy_id",
                forbidden_code="folder_not_allowed",
                body=lambda folder, checkpoint_id, version, name: {"folder": folder, "policy_id": checkpoint_id, "version": version},
            )
        },
    ),
    "vllm": Kind(
        owner="vllm",
        neutral=_PLAIN_SAMPLING,
        chat_fields=_CHAT_IDS,
        tokens=(VllmTokens, Completions),
        ways={
            "disk": Loading(
                takes="checkpoints",
                path="/collective_rpc",
                body=lambda folder, checkpoint_id, version, name: {"method": "reload_weights", "kwargs": {"weights_path": folder}},
                keeps_tied_head_on_cpu=True,
                **_VLLM_HELD,
            ),
            "transfer": Loading(
                takes="checkpoints",
                is_sent=True,
                before=(("/start_weight_update", {}),),
                path="/update_weights",
                body=lambda folder, checkpoint_id, version, name: {},
                **{**_VLLM_HELD, "after": lambda *named: (("/finish_weight_update", {}), *_vllm_forgets(*named))},
            ),
            "lora": Loading(
                takes="adapters",
                path="/v1/load_lora_adapter",
                adds_model=True,
                body=lambda folder, checkpoint_id, version, name: {"lora_name": name, "lora_path": folder, "load_inplace": True},
                unload_path="/v1/unload_lora_adapter",
                unload_body=lambda name: {"lora_name": name},
            ),
        },
    ),
    "sglang": Kind(
        owner="sglang",
        neutral=_PLAIN_SAMPLING,
        tokens=(SglangTokens,),
        chat_fields={"logprobs": True, "return_meta_info": True, "return_prompt_token_ids": True},
        ways={
            "disk": Loading(
                takes="checkpoints",
                path="/update_weights_from_disk",
                confirmed_by="success",
                body=lambda folder, checkpoint_id, version, name: {
                    "model_path": folder,
                    "weight_version": checkpoint_id,
                    "abort_all_requests": False,
                },
            )
        },
    ),
    "llama.cpp": Kind(
        owner="llamacpp", neutral=_LLAMA_CPP_SAMPLING, chat_fields={"logprobs": True, "top_logprobs": 1}, tokens=(Completions,)
    ),
    "openai": Kind(chat_fields=_CHAT_IDS, tokens=(Completions,)),
}
"""All that differs between kinds of servers."""


def kind_owning(owner: Any) -> ServerKind:
    """The kind of server whose list of models names this owner; openai where none does."""
    return next((name for name, kind in KINDS.items() if kind.owner is not None and kind.owner == owner), "openai")


def dialects_for(kind: ServerKind, *, sends_token_ids: bool) -> Sequence[Dialect]:
    """The routes that such a server may have, the one that gives most first."""
    return [route(KINDS[kind]) for route in KINDS[kind].tokens] if sends_token_ids else [Chat(KINDS[kind])]
