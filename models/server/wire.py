"""Requests and answers of the policy server: OpenAI's fields as far as they are carried out, and extensions.

A field that is not carried out is refused rather than passed over: nobody should believe in a penalty that was never applied. Extensions
follow vLLM's names where it has them (`return_token_ids`, `prompt_token_ids`, `token_ids`); `conversation` and `flywheel` are ours.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.http.config import Capabilities

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Finish = Literal["stop", "length"]


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TextPart(_Wire):
    type: Literal["text"]
    text: str


class ImageUrl(_Wire):
    url: Annotated[str, Field(description="data:image/…;base64,…; the server fetches nothing")]
    detail: Annotated[str | None, Field(description="accepted and not used: pictures are read as they are")] = None


class ImagePart(_Wire):
    type: Literal["image_url"]
    image_url: ImageUrl


class ChatMessage(_Wire):
    role: Literal["system", "user", "assistant"]
    content: str | list[Annotated[TextPart | ImagePart, Field(discriminator="type")]]
    name: Annotated[str | None, Field(description="accepted and not used")] = None


class StreamOptions(_Wire):
    include_usage: Annotated[bool, Field(description="end with a chunk that counts tokens")] = False


class _Sampled(_Wire):
    """What both routes take."""

    model: Annotated[str | None, Field(description="the served name or the checkpoint id; null: whatever is served")] = None
    temperature: Annotated[float, Field(ge=0, le=10, description="0 is greedy")] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63, description="of this request's own generator; null: a random one")] = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    stop: Annotated[str | list[str] | None, Field(description="texts that end the answer; not part of it")] = None
    n: Literal[1] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: Annotated[bool, Field(description="tell the token ids of prompt and answer")] = False
    conversation: Annotated[
        str | None, Field(max_length=200, description="an id: prompts of one conversation follow one another and mostly begin alike")
    ] = None
    user: Annotated[str | None, Field(description="accepted and not used")] = None

    @property
    def stops(self) -> tuple[str, ...]:
        found = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return tuple(text for text in found if text)

    @model_validator(mode="after")
    def _few_stops(self) -> _Sampled:
        if len(self.stops) > 4:
            raise ValueError(f"{len(self.stops)} stop texts; at most 4 are allowed")
        return self


class ChatRequest(_Sampled):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int | None, Field(ge=1, description="the newer name of max_tokens")] = None
    logprobs: Annotated[bool, Field(description="log-probability of each token, of the distribution that was sampled from")] = False
    top_logprobs: Annotated[Literal[0] | None, Field(description="only the sampled token's are kept")] = None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class CompletionRequest(_Sampled):
    prompt: Annotated[str | list[TokenId], Field(description="a text, or token ids, which are used as they are")]
    logprobs: Annotated[int | None, Field(ge=0, le=1, description="only the sampled token's are kept")] = None
    echo: Literal[False] = False

    @property
    def limit(self) -> int | None:
        return self.max_tokens


class Usage(_Wire):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Extension(_Wire):
    """Ours: whose weights wrote what."""

    policy_id: Annotated[str, Field(description="checkpoint id of the weights behind the first token of what it stands beside")]
    versions: Annotated[list[int], Field(description="updates that the weights behind each token had seen")]


class ChatLogprob(_Wire):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatLogprob] = []


class ChatLogprobs(_Wire):
    content: list[ChatLogprob]


class CompletionLogprobs(_Wire):
    tokens: list[str]
    token_logprobs: list[float]


class ChatText(_Wire):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChoice(_Wire):
    """`message` in a whole answer, `delta` in a chunk."""

    index: Literal[0] = 0
    message: ChatText | None = None
    delta: ChatText | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | None = None
    finish_reason: Finish | None = None
    flywheel: Extension | None = None


class CompletionChoice(_Wire):
    index: Literal[0] = 0
    text: str
    logprobs: CompletionLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    finish_reason: Finish | None = None
    flywheel: Extension | None = None


class ChatAnswer(_Wire):
    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None


class CompletionAnswer(_Wire):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ModelEntry(_Wire):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["flywheel"] = "flywheel"
    root: Annotated[str, Field(description="checkpoint id of the weights that answer now")]
    max_model_len: int
    flywheel: Annotated[Capabilities, Field(description="what the server gives, for models/http/engine.py")]


class ModelList(_Wire):
    object: Literal["list"] = "list"
    data: list[ModelEntry]


class WeightsRequest(_Wire):
    folder: Annotated[str, Field(min_length=1, description="a checkpoint's folder on the server's machine, below an allowed root")]
    policy_id: Annotated[str | None, Field(max_length=200, description="name of these weights; null: the card's checkpoint id")] = None
    version: Annotated[int, Field(ge=0, description="updates that these weights have seen")] = 0


class WeightsAnswer(_Wire):
    policy_id: str
    version: int


class Health(_Wire):
    status: Literal["ok", "closing"]
    policy_id: str
    version: int
    num_running: int
    num_waiting: int


class Problem(_Wire):
    """OpenAI's shape of an error, inside `error`."""

    message: str
    type: Literal["invalid_request_error", "authentication_error", "permission_error", "rate_limit_error", "server_error"]
    param: str | None = None
    code: str | None = None


class ProblemAnswer(_Wire):
    error: Problem
