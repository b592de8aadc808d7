"""Answers of both routes, whole and in chunks, from the parts that the service yields. Streams are server-sent events as OpenAI sends them:
`data: {…}` lines, and `data: [DONE]` at the end."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from models.families.chat import ChatCodec
from models.server.problems import ApiError
from models.server.service import Job, Part
from models.server.tools import CallReader
from models.server.wire import (
    CalledFunction,
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
    Finish,
    ToolCall,
    TopLogprob,
    Usage,
)

DONE = "data: [DONE]\n\n"
EVENT_STREAM = "text/event-stream"


class Writer(ABC):
    """Writes the answers to one request. A whole answer is all of its parts, a chunk a new one."""

    def __init__(self, asked: ChatRequest | CompletionRequest, job: Job, codec: ChatCodec, model: str) -> None:
        self._job, self._codec, self._model = job, codec, model
        self._tells_ids, self._tells_logprobs = asked.return_token_ids, asked.logprobs not in (None, False)
        self._counts_at_end = asked.stream_options is not None and asked.stream_options.include_usage
        self._created = int(time.time())
        self._id = secrets.token_hex(12)

    @abstractmethod
    def whole(self, answers: Sequence[Sequence[Part]]) -> str:
        """All answers as JSON."""

    @abstractmethod
    def _opening(self) -> str | None:
        """A chunk before the first token, where the route has one."""

    @abstractmethod
    def _chunk(self, number: int, part: Part, *, is_first: bool) -> str:
        """A part of the answer of this number; `is_first`: its first."""

    @abstractmethod
    def _count(self, usage: Usage) -> str: ...

    async def events(self, parts: AsyncGenerator[tuple[int, Part], None]) -> AsyncGenerator[str, None]:
        """The chunks of a stream. An error after the first chunk is sent as a chunk of its own, since the status has been sent."""
        num_written, begun = 0, set[int]()
        try:
            if (opening := self._opening()) is not None:
                yield f"data: {opening}\n\n"
            async for number, part in parts:
                num_written += 1
                yield f"data: {self._chunk(number, part, is_first=number not in begun)}\n\n"
                begun.add(number)
            if self._counts_at_end:
                yield f"data: {self._count(self._job.usage(num_written))}\n\n"
        except ApiError as error:
            yield f"data: {error.body}\n\n"
        finally:
            await parts.aclose()
        yield DONE

    def _usage(self, answers: Sequence[Sequence[Part]]) -> Usage:
        return self._job.usage(sum(map(len, answers)))

    def _token_ids(self, parts: Sequence[Part]) -> list[int] | None:
        return [part.written.token_id for part in parts] if self._tells_ids else None

    def _prompt_ids(self) -> list[int] | None:
        return list(self._job.requests[0].prompt) if self._tells_ids else None

    def _token(self, token_id: int) -> str:
        return self._codec.decode([token_id])

    @staticmethod
    def _extension(parts: Sequence[Part]) -> Extension:
        return Extension(policy_id=parts[0].written.policy_id, versions=[part.written.version for part in parts])


class ChatWriter(Writer):
    def __init__(self, asked: ChatRequest, job: Job, codec: ChatCodec, model: str) -> None:
        super().__init__(asked, job, codec, model)
        single = not asked.parallel_tool_calls
        self._readers = [CallReader(job.tools, is_single=single) for _ in job.requests] if job.tools is not None else []

    def whole(self, answers: Sequence[Sequence[Part]]) -> str:
        choices = [self._whole_choice(number, parts) for number, parts in enumerate(answers)]
        return self._answer("chat.completion", choices, prompt_ids=self._prompt_ids(), usage=self._usage(answers))

    def _whole_choice(self, number: int, parts: Sequence[Part]) -> ChatChoice:
        text, calls = self._read(number, "".join(part.text for part in parts), is_end=True)
        return ChatChoice(
            index=number,
            message=ChatText(role="assistant", content=text if text or not calls else None, tool_calls=calls or None),
            logprobs=self._logprobs(parts),
            token_ids=self._token_ids(parts),
            finish_reason=self._finish(number, parts[-1]),
            flywheel=self._extension(parts),
        )

    def _opening(self) -> str | None:
        choices = [ChatChoice(index=number, delta=ChatText(role="assistant", content="")) for number in range(len(self._job.requests))]
        return self._answer("chat.completion.chunk", choices, prompt_ids=self._prompt_ids())

    def _chunk(self, number: int, part: Part, *, is_first: bool) -> str:
        text, calls = self._read(number, part.text, is_end=part.finish is not None, in_chunks=True)
        choice = ChatChoice(
            index=number,
            delta=ChatText(content=text, tool_calls=calls or None),
            logprobs=self._logprobs([part]),
            token_ids=self._token_ids([part]),
            finish_reason=self._finish(number, part),
            flywheel=self._extension([part]),
        )
        return self._answer("chat.completion.chunk", [choice])

    def _read(self, number: int, text: str, *, is_end: bool, in_chunks: bool = False) -> tuple[str, list[ToolCall]]:
        """What a text says, and the calls in it. In a stream each call is numbered."""
        if not self._readers:
            return text, []
        reader = self._readers[number]
        first = reader.num_calls
        said, calls = reader.add(text, is_end=is_end)
        return said, [
            ToolCall(
                id=f"c{secrets.token_hex(4)}",
                function=CalledFunction(name=call.name, arguments=call.arguments),
                index=first + place if in_chunks else None,
            )
            for place, call in enumerate(calls)
        ]

    def _finish(self, number: int, last: Part) -> Finish | None:
        has_called = bool(self._readers) and self._readers[number].num_calls > 0
        return "tool_calls" if last.finish == "stop" and has_called else last.finish

    def _count(self, usage: Usage) -> str:
        return self._answer("chat.completion.chunk", [], usage=usage)

    def _logprobs(self, parts: Sequence[Part]) -> ChatLogprobs | None:
        if not self._tells_logprobs:
            return None
        return ChatLogprobs(
            content=[
                ChatLogprob(
                    **self._entry(part.written.token_id, part.written.logprob),
                    top_logprobs=[TopLogprob(**self._entry(*pair)) for pair in part.written.top],
                )
                for part in parts
            ]
        )

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        token = self._token(token_id)
        return {"token": token, "logprob": logprob, "bytes": list(token.encode())}

    def _answer(self, kind: str, choices: list[ChatChoice], *, prompt_ids: list[int] | None = None, usage: Usage | None = None) -> str:
        fields = {"id": f"chatcmpl-{self._id}", "object": kind, "created": self._created, "model": self._model}
        return ChatAnswer.model_validate(fields | {"choices": choices, "usage": usage, "prompt_token_ids": prompt_ids}).model_dump_json(
            exclude_none=True
        )


class CompletionWriter(Writer):
    def whole(self, answers: Sequence[Sequence[Part]]) -> str:
        choices = [self._choice(number, parts, self._prompt_ids()) for number, parts in enumerate(answers)]
        return self._answer(choices, usage=self._usage(answers))

    def _opening(self) -> str | None:
        return None

    def _chunk(self, number: int, part: Part, *, is_first: bool) -> str:
        return self._answer([self._choice(number, [part], self._prompt_ids() if is_first else None)])

    def _count(self, usage: Usage) -> str:
        return self._answer([], usage=usage)

    def _choice(self, number: int, parts: Sequence[Part], prompt_ids: list[int] | None) -> CompletionChoice:
        logprobs = None
        if self._tells_logprobs:
            logprobs = CompletionLogprobs(
                tokens=[self._token(part.written.token_id) for part in parts],
                token_logprobs=[part.written.logprob for part in parts],
                top_logprobs=[self._likeliest(part) for part in parts],
            )
        return CompletionChoice(
            index=number,
            text="".join(part.text for part in parts),
            logprobs=logprobs,
            prompt_token_ids=prompt_ids,
            token_ids=self._token_ids(parts),
            finish_reason=parts[-1].finish,
            flywheel=self._extension(parts),
        )

    def _likeliest(self, part: Part) -> dict[str, float]:
        """By their text; of tokens with the same text the likeliest."""
        return {self._token(token_id): logprob for token_id, logprob in reversed(part.written.top)}

    def _answer(self, choices: list[CompletionChoice], usage: Usage | None = None) -> str:
        answer = CompletionAnswer(id=f"cmpl-{self._id}", created=self._created, model=self._model, choices=choices, usage=usage)
        return answer.model_dump_json(exclude_none=True)
