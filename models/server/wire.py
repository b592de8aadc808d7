"""Requests and answers of the policy server: OpenAI's fields as far as they are carried out, and extensions.

A field that is not carried out is refused rather than passed over: nobody should believe in a penalty that was never applied. Extensions
follow vLLM's names where it has them (`return_token_ids`, `prompt_token_ids`, `token_ids`); `conversation` and `flywheel` are ours.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.http.config import Capabilities

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Finish = Literal["stop", "length", "tool_calls"]
MAX_CHOICES, MAX_TOP_LOGPROBS = 16, 20


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


class CalledFunction(_Wire):
    name: Annotated[str, Field(max_length=200)]
    arguments: Annotated[str, Field(description="a JSON object, as text")]


class ToolCall(_Wire):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Annotated[int | None, Field(description="in the chunks of a stream")] = None


class _Asked(_Wire):
    """Of a request: null is the same as nothing, for clients that send every field they know."""

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


class ChatMessage(_Asked):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str | list[Annotated[TextPart | ImagePart, Field(discriminator="type")]] | None,
        Field(description="texts and pictures in any order; null where an assistant only calls tools"),
    ] = None
    name: Annotated[str | None, Field(description="of a tool; of others accepted and not used")] = None
    tool_calls: Annotated[list[ToolCall] | None, Field(description="of an assistant's message")] = None
    tool_call_id: Annotated[str | None, Field(description="of a tool's message: the call that it answers")] = None

    @model_validator(mode="after")
    def _says_something(self) -> ChatMessage:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"a message of role {self.role!r} has tool_calls: only the assistant's may")
        if self.content is None and not self.tool_calls:
            raise ValueError(f"a message of role {self.role!r} has no content: null is allowed only with the assistant's tool_calls")
        return self


class StreamOptions(_Asked):
    include_usage: Annotated[bool, Field(description="end with a chunk that counts tokens")] = False
    include_obfuscation: Annotated[bool | None, Field(description="accepted and not used: nothing is padded")] = None


class Function(_Asked):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: Annotated[dict[str, Any], Field(description="JSON schema of the arguments; none: any object")] = {}
    strict: Annotated[bool | None, Field(description="accepted; arguments are held to the schema where tool_choice demands a call")] = None


class Tool(_Asked):
    type: Literal["function"]
    function: Function


class NamedFunction(_Wire):
    name: str


class NamedTool(_Wire):
    type: Literal["function"]
    function: NamedFunction


class JsonSchema(_Asked):
    name: Annotated[str, Field(description="accepted and not used")] = ""
    description: Annotated[str | None, Field(description="accepted and not used")] = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: Annotated[bool | None, Field(description="accepted; the schema is always held to")] = None


class ResponseFormat(_Asked):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_where_one_is_named(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError(f"type is {self.type!r}: give json_schema if and only if type is json_schema")
        return self


class _Sampled(_Asked):
    """What both routes take. Fields that do nothing at their usual value are taken at that value only."""

    model: Annotated[str | None, Field(description="the served name or the checkpoint id; null: whatever is served")] = None
    temperature: Annotated[float, Field(ge=0, le=10, description="0 is greedy")] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[
        int | None, Field(ge=-(2**63), lt=2**63, description="of this request's generator, of n answers the first's; null: random")
    ] = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    stop: Annotated[str | list[str] | None, Field(description="texts that end the answer; not part of it")] = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES, description="answers to write; each has a seed of its own")] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: Annotated[bool, Field(description="return the token ids of prompt and answer")] = False
    conversation: Annotated[
        str | None, Field(max_length=200, description="an id: prompts of one conversation follow one another and mostly begin alike")
    ] = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2, description="taken from a logit for each earlier token of its id")] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2, description="taken from the logits of tokens that the answer holds")] = 0.0
    repetition_penalty: Annotated[float | None, Field(ge=1, le=1, description="1: not carried out")] = None
    min_p: Annotated[float | None, Field(ge=0, le=0, description="0: not carried out")] = None
    top_k: Annotated[Literal[-1, 0] | None, Field(description="-1 or 0, all tokens: not carried out")] = None
    logit_bias: Annotated[
        dict[TokenId, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024, description="added to logits, by token id")
    ] = {}
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
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS, description="likeliest tokens to return beside each, with logprobs")] = 0
    response_format: ResponseFormat = ResponseFormat(type="text")
    tools: Annotated[list[Tool], Field(max_length=128)] = []
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedTool | None, Field(description="null: auto where there are tools")
    ] = None
    parallel_tool_calls: Annotated[bool, Field(description="false: the answer ends with its first call")] = True
    functions: Annotated[list[Any] | None, Field(max_length=0, description="the old name of tools; empty: not carried out")] = None
    function_call: Annotated[Literal["none", "auto"] | None, Field(description="the old name of tool_choice: not carried out")] = None
    modalities: Annotated[list[Literal["text"]] | None, Field(description="text alone")] = None
    service_tier: Annotated[Literal["auto", "default"] | None, Field(description="accepted and not used")] = None
    metadata: Annotated[dict[str, str] | None, Field(description="accepted and not used: nothing is stored")] = None
    store: Annotated[Literal[False] | None, Field(description="false: nothing is stored")] = None
    safety_identifier: Annotated[str | None, Field(description="accepted and not used")] = None
    prompt_cache_key: Annotated[str | None, Field(description="accepted and not used; conversation does that")] = None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def num_top(self) -> int:
        return self.top_logprobs

    @property
    def choice(self) -> Literal["none", "auto", "required"] | NamedTool:
        return self.tool_choice or ("auto" if self.tools else "none")

    @model_validator(mode="after")
    def _fields_that_need_others(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError(f"top_logprobs is {self.top_logprobs} but logprobs is false: set logprobs to true")
        if isinstance(self.choice, NamedTool) and self.choice.function.name not in (names := [tool.function.name for tool in self.tools]):
            raise ValueError(f"tool_choice names {self.choice.function.name!r}, but tools has {', '.join(names) or 'none'}")
        if self.choice == "required" and not self.tools:
            raise ValueError("tool_choice is 'required' but tools is empty: add a tool")
        if self.choice not in ("none", "auto") and self.response_format.type != "text":
            raise ValueError(f"tool_choice requires a call but response_format is {self.response_format.type!r}: remove one of them")
        return self


class CompletionRequest(_Sampled):
    prompt: Annotated[str | list[TokenId], Field(description="a text, or token ids, which are used as they are")]
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_TOP_LOGPROBS, description="likeliest tokens to return beside each")] = None
    echo: Literal[False] = False
    best_of: Annotated[Literal[1] | None, Field(description="1: not carried out")] = None
    suffix: Annotated[Literal[""] | None, Field(description="empty: not carried out")] = None

    @property
    def limit(self) -> int | None:
        return self.max_tokens

    @property
    def num_top(self) -> int:
        return self.logprobs or 0


class Usage(_Wire):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Extension(_Wire):
    """Ours: whose weights wrote what."""

    policy_id: Annotated[str, Field(description="checkpoint id of the weights behind the first token of what it stands beside")]
    versions: Annotated[list[int], Field(description="updates that the weights behind each token had seen")]


class TopLogprob(_Wire):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob] = []


class ChatLogprobs(_Wire):
    content: list[ChatLogprob]


class CompletionLogprobs(_Wire):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None = None


class ChatText(_Wire):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(_Wire):
    """`message` in a whole answer, `delta` in a chunk."""

    index: int = 0
    message: ChatText | None = None
    delta: ChatText | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | None = None
    finish_reason: Finish | None = None
    flywheel: Extension | None = None


class CompletionChoice(_Wire):
    index: int = 0
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


class Following(_Wire):
    """Of a server that serves whichever release is live."""

    release: Annotated[str, Field(description="ITERATION/STAGE of the live release")]
    policy_id: Annotated[str, Field(description="its weights, which the server serves or is about to serve")]
    problem: Annotated[str | None, Field(description="why it does not serve them, and goes on with those that it has")] = None

    @property
    def is_behind(self) -> bool:
        return self.problem is not None


class Health(_Wire):
    status: Literal["ok", "closing"]
    policy_id: str
    version: Annotated[
        int, Field(description="of the weights; of a server that follows a release: the number of the change that made it live")
    ]
    num_running: int
    num_waiting: int
    following: Following | None = None


class Problem(_Wire):
    """OpenAI's shape of an error, inside `error`."""

    message: str
    type: Literal["invalid_request_error", "authentication_error", "permission_error", "rate_limit_error", "server_error"]
    param: str | None = None
    code: str | None = None


class ProblemAnswer(_Wire):
    error: Problem
