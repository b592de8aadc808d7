"""A policy server: how it is reached and what it was found to give. Light: reading a profile imports no HTTP library and no torch.

The engine that uses them is models/http/engine.py; finding out is models/http/probe.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

ServerKind = Literal["flywheel", "vllm", "sglang", "llama.cpp", "openai"]
Send = Literal["messages", "token_ids"]
Way = Literal["disk", "transfer", "lora"]
"""How new weights reach a server that runs."""


class HttpEngineConfig(BaseModel):
    """A server that answers prompts, and how patient we are with it. The token itself is never here, only the variable that holds it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: Annotated[str, Field(description="address of the server, with or without a closing /v1")]
    replicas: Annotated[
        tuple[str, ...],
        Field(
            description="addresses of further servers of the same model: each conversation stays with one of them, all are handed new "
            "weights, and one that dies is done without"
        ),
    ] = ()
    model: Annotated[str | None, Field(description="name that requests carry; null: the only model that the server lists")] = None
    token_env: Annotated[str | None, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="variable that holds the bearer token")] = None
    server: Annotated[
        ServerKind | Literal["auto"], Field(description="kind of server; auto: what its list of models says it is owned by")
    ] = "auto"
    send: Annotated[
        Send, Field(description="messages: the server's chat template makes tokens of them; token_ids: our codec does, nothing is re-read")
    ] = "messages"
    stop: Annotated[tuple[str, ...], Field(max_length=4, description="texts that end an answer, beside the end token")] = ()
    max_concurrency: Annotated[int, Field(ge=1, le=4096, description="requests under way at once")] = 64
    timeout_s: Annotated[float, Field(gt=0, description="longest that one request may take, waiting at the server included")] = 300.0
    connect_timeout_s: Annotated[float, Field(gt=0, description="longest that a connection may take to be made")] = 10.0
    retries: Annotated[int, Field(ge=0, le=100, description="further attempts after 429, 5xx and broken connections")] = 6
    backoff_s: Annotated[float, Field(ge=0, description="pause before the second attempt; doubles from then on, with jitter")] = 0.5
    max_backoff_s: Annotated[float, Field(ge=0, description="longest pause, also where the server asks for a longer one")] = 30.0
    exchange: Annotated[
        str | None, Field(description="folder that the server sees under the same path; new weights of a learner are handed over in it")
    ] = None

    weights: Annotated[
        Way | Literal["auto"],
        Field(
            description="how new weights reach the server; disk: it reads a folder; transfer: they are sent over the network; lora: it "
            "reads an adapter's folder; auto: disk where the server can, else lora"
        ),
    ] = "auto"
    under_way: Annotated[
        Literal["go_on", "finish"],
        Field(description="answers under way when weights change: they go on with the new ones, or finish first, where it is up to us"),
    ] = "go_on"

    @field_validator("base_url")
    @classmethod
    def _address(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError(f"{value!r} is not an address: use http://HOST:PORT or https://HOST:PORT")
        return value.rstrip("/").removesuffix("/v1").rstrip("/")

    @field_validator("replicas")
    @classmethod
    def _addresses(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(cls._address(value) for value in values)

    @model_validator(mode="after")
    def _each_once(self) -> HttpEngineConfig:
        if len({self.base_url, *self.replicas}) != 1 + len(self.replicas):
            raise ValueError(f"base_url and replicas name a server twice: {self.base_url}, {', '.join(self.replicas)}")
        return self

    def each(self) -> tuple[HttpEngineConfig, ...]:
        """The settings of every server by itself."""
        return tuple(self.model_copy(update={"base_url": url, "replicas": ()}) for url in (self.base_url, *self.replicas))


class Capabilities(BaseModel):
    """The capabilities found of a server. RL needs all of them: see `why_not_learnable`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: Annotated[ServerKind, Field(description="kind of server")]
    model: Annotated[str, Field(description="name that requests carry")]
    policy_id: Annotated[str, Field(description="checkpoint id where the server reports it, else the model's name")]
    max_context: Annotated[int | None, Field(description="tokens of prompt and answer together, where the server reports it")] = None
    prompt_token_ids: Annotated[bool, Field(description="returns the prompt's token ids")] = False
    token_ids: Annotated[bool, Field(description="returns the answer's token ids")] = False
    logprobs: Annotated[bool, Field(description="gives the log-probability of each token of the answer")] = False
    logprobs_follow_temperature: Annotated[bool, Field(description="they are of the distribution after temperature")] = False
    logprobs_follow_top_p: Annotated[bool, Field(description="they are of the distribution after top-p")] = False
    versions: Annotated[bool, Field(description="returns which weights wrote each token")] = False
    loads: Annotated[Literal["checkpoints", "adapters", "nothing"], Field(description="what it can load at run time")] = "nothing"
    weights: Annotated[Way | None, Field(description="by which way; null where it loads nothing")] = None

    def gives_logprobs(self, temperature: float, top_p: float) -> bool:
        """Whether log-probabilities are of the distribution that such answers are sampled from. Greedy ones are of temperature 1 and all
        tokens by convention, which is what servers give."""
        if not self.logprobs or temperature == 0:
            return self.logprobs
        return (temperature == 1 or self.logprobs_follow_temperature) and (top_p == 1 or self.logprobs_follow_top_p)

    def why_not_learnable(self, temperature: float = 1.0, top_p: float = 1.0) -> str | None:
        """What is missing for learning from answers sampled so; None where nothing is."""
        missing = [
            name
            for name, given in (
                ("token ids of the prompt", self.prompt_token_ids),
                ("token ids of the answer", self.token_ids),
                ("log-probabilities", self.logprobs),
            )
            if not given
        ]
        if missing:
            return "it gives no " + ", no ".join(missing)
        if not self.gives_logprobs(temperature, top_p):
            return f"its log-probabilities are not of the distribution sampled from at temperature {temperature:g} and top-p {top_p:g}"
        return None
