"""Answers of both routes, whole and in chunks, from the parts that the service yields. Streams are server-sent events as OpenAI sends them:
`data: {…}` lines, and `data: [DONE]` at the end."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence

from models.chat import ChatCodec
from models.server.problems import ApiError
from models.server.service import Job, Part
from models.server.wire import (
    ChatAnswer,
    ChatChoice,
    ChatLogprob,
    ChatLogprobs,
    ChatRequest,
    ChatText,
    CompletionAnswer,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    Extension,
    Usage,
)

DONE = "data: [DONE]\n\n"
EVENT_STREAM = "text/event-stream"


class Writer(ABC):
    """Writes the answer to one request. `parts` is all of them for a whole answer, the new one for a chunk."""

    def __init__(self, asked: ChatRequest | CompletionRequest, job: Job, codec: ChatCodec, model: str) -> None:
        self._job, self._codec, self._model = job, codec, model
        self._tells_ids, self._tells_logprobs = asked.return_token_ids, asked.logprobs not in (None, False)
        self._counts_at_end = asked.stream_options is not None and asked.stream_options.include_usage
        self._created = int(time.time())
        self._id = secrets.token_hex(12)

    @abstractmethod
    def whole(self, parts: Sequence[Part]) -> str:
        """The answer as JSON."""

    @abstractmethod
    def _opening(self) -> str | None:
        """A chunk before the first token, where the route has one."""

    @abstractmethod
    def _chunk(self, part: Part, *, is_first: bool) -> str: ...

    @abstractmethod
    def _count(self, usage: Usage) -> str: ...

    async def events(self, parts: AsyncGenerator[Part, None]) -> AsyncGenerator[str, None]:
        """The chunks of a stream. What goes wrong after the first of them is told in one of its own, for the status has been sent."""
        num_written = 0
        try:
            if (opening := self._opening()) is not None:
                yield f"data: {opening}\n\n"
            async for part in parts:
                num_written += 1
                yield f"data: {self._chunk(part, is_first=num_written == 1)}\n\n"
            if self._counts_at_end:
                yield f"data: {self._count(self._job.usage(num_written))}\n\n"
        except ApiError as error:
            yield f"data: {error.body}\n\n"
        finally:
            await parts.aclose()
        yield DONE

    def _token_ids(self, parts: Sequence[Part]) -> list[int] | None:
        return [part.written.token_id for part in parts] if self._tells_ids else None

    def _prompt_ids(self) -> list[int] | None:
        return list(self._job.request.prompt) if self._tells_ids else None

    def _tokens(self, parts: Sequence[Part]) -> list[str]:
        return [self._codec.decode([part.written.token_id]) for part in parts]

    @staticmethod
    def _extension(parts: Sequence[Part]) -> Extension:
        return Extension(policy_id=parts[0].written.policy_id, versions=[part.written.version for part in parts])


class ChatWriter(Writer):
    def whole(self, parts: Sequence[Part]) -> str:
        choice = ChatChoice(
            message=ChatText(role="assistant", content="".join(part.text for part in parts)), logprobs=self._logprobs(parts),
            token_ids=self._token_ids(parts), finish_reason=parts[-1].finish, flywheel=self._extension(parts),
        )  # fmt: skip
        return self._answer("chat.completion", [choice], prompt_ids=self._prompt_ids(), usage=self._job.usage(len(parts)))

    def _opening(self) -> str | None:
        choice = ChatChoice(delta=ChatText(role="assistant", content=""))
        return self._answer("chat.completion.chunk", [choice], prompt_ids=self._prompt_ids())

    def _chunk(self, part: Part, *, is_first: bool) -> str:
        choice = ChatChoice(
            delta=ChatText(content=part.text), logprobs=self._logprobs([part]), token_ids=self._token_ids([part]),
            finish_reason=part.finish, flywheel=self._extension([part]),
        )  # fmt: skip
        return self._answer("chat.completion.chunk", [choice])

    def _count(self, usage: Usage) -> str:
        return self._answer("chat.completion.chunk", [], usage=usage)

    def _logprobs(self, parts: Sequence[Part]) -> ChatLogprobs | None:
        if not self._tells_logprobs:
            return None
        return ChatLogprobs(
            content=[
                ChatLogprob(token=token, logprob=part.written.logprob, bytes=list(token.encode()))
                for token, part in zip(self._tokens(parts), parts, strict=True)
            ]
        )

    def _answer(
        self, kind: str, choices: list[ChatChoice], *, prompt_ids: list[int] | None = None, usage: Usage | None = None
    ) -> str:
        fields = {"id": f"chatcmpl-{self._id}", "object": kind, "created": self._created, "model": self._model}
        return ChatAnswer.model_validate(
            fields | {"choices": choices, "usage": usage, "prompt_token_ids": prompt_ids}
        ).model_dump_json(exclude_none=True)  # fmt: skip


class CompletionWriter(Writer):
    def whole(self, parts: Sequence[Part]) -> str:
        return self._answer([self._choice(parts, self._prompt_ids())], usage=self._job.usage(len(parts)))

    def _opening(self) -> str | None:
        return None

    def _chunk(self, part: Part, *, is_first: bool) -> str:
        return self._answer([self._choice([part], self._prompt_ids() if is_first else None)])

    def _count(self, usage: Usage) -> str:
        return self._answer([], usage=usage)

    def _choice(self, parts: Sequence[Part], prompt_ids: list[int] | None) -> CompletionChoice:
        logprobs = None
        if self._tells_logprobs:
            logprobs = CompletionLogprobs(tokens=self._tokens(parts), token_logprobs=[part.written.logprob for part in parts])
        return CompletionChoice(
            text="".join(part.text for part in parts), logprobs=logprobs, prompt_token_ids=prompt_ids, token_ids=self._token_ids(parts),
            finish_reason=parts[-1].finish, flywheel=self._extension(parts),
        )  # fmt: skip

    def _answer(self, choices: list[CompletionChoice], usage: Usage | None = None) -> str:
        answer = CompletionAnswer(id=f"cmpl-{self._id}", created=self._created, model=self._model, choices=choices, usage=usage)
        return answer.model_dump_json(exclude_none=True)
