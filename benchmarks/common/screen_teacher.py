"""A model that knows five MiniWoB tasks by rules: it reads browser-use's list of elements and answers in its schema, or by calls of tools
where there are some, as OpenAI's chat completions. What it does not know it gives up.

`python -m benchmarks.common.screen_teacher` prints its address and serves until it is ended.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sandbox.http.serving import Server, address_of, bind, serve_until_signalled

NAME = "screen-teacher"
GIVES_UP = [{"done": {"text": "I do not know this task.", "success": False, "files_to_display": []}}]
Actions = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Thing:
    """A numbered element and the text below it."""

    index: int
    tag: str
    text: str


def things(screen: str) -> Iterator[Thing]:
    """Of browser-use's state, in its order."""
    found = re.split(r"^\s*(?:\|[^|]*\|)?\*?\[(\d+)\]<", screen.split("Interactive elements:")[-1], flags=re.MULTILINE)
    for index, rest in zip(found[1::2], found[2::2], strict=True):
        tag, _, text = rest.partition("/>")
        yield Thing(int(index), tag.strip(), " ".join(text.split()))


def click(thing: Thing | None) -> Actions:
    return GIVES_UP if thing is None else [{"click": {"index": thing.index}}]


def decide(task: str, screen: str) -> Actions:
    """What is right by the task's words; GIVES_UP for other tasks."""
    listed = list(things(screen))
    inputs = [thing for thing in listed if thing.tag.startswith(("input", "textarea")) and "button" not in thing.tag]
    if found := re.search(r'Enter "(.*)" into the text field and press Submit', task):
        submit = next((thing for thing in listed if thing.text.startswith("Submit")), None)
        if not inputs or submit is None:
            return GIVES_UP
        typed = [{"input": {"index": inputs[0].index, "text": found[1], "clear": True}}]
        return click(submit) if inputs[0].text == found[1] else typed + click(submit)
    if found := re.search(r"Focus into the (\d)\w\w input textbox", task):
        number = int(found[1])
        return click(inputs[number - 1] if number <= len(inputs) else None)
    if found := re.search(r'Click (?:on the "(.*)" button|button (\w+)|on (Tab #\d))', task):
        name = found[1] or found[2] or found[3]
        named = [thing for thing in listed if _shows(thing, name) and not thing.tag.startswith("div")]
        return click(named[0] if named else None)
    return GIVES_UP


def _shows(thing: Thing, name: str) -> bool:
    return thing.text == name or thing.text.startswith(f"{name} ") or f"value={name}" in thing.tag


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content or ())


def as_text(actions: Actions) -> dict[str, Any]:
    """browser-use's schema."""
    answer = json.dumps({"memory": None, "action": actions})
    return {"message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}


def as_calls(actions: Actions) -> dict[str, Any]:
    """The first, as a call of the tool of its name: calls of one answer may be carried out at once. Giving up is a word."""
    if actions == GIVES_UP:
        return {"message": {"role": "assistant", "content": "I do not know this task."}, "finish_reason": "stop"}
    ((name, arguments),) = actions[0].items()
    kept = json.dumps({key: value for key, value in arguments.items() if key != "clear"})
    call = {"id": f"call_{secrets.token_hex(8)}", "type": "function", "function": {"name": name, "arguments": kept}}
    return {"message": {"role": "assistant", "content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}


def create() -> Starlette:
    async def models(request: Request) -> Response:
        return JSONResponse({"data": [{"id": NAME, "owned_by": NAME, "root": NAME}]})

    async def chat(request: Request) -> Response:
        asked = await request.json()
        said = [text_of(message.get("content")) for message in asked["messages"]]
        tasks = [found[1] for text in said if (found := re.search(r"<user_request>\s*(.*?)\s*</user_request>", text, re.DOTALL))]
        actions = decide(tasks[-1] if tasks else "", said[-1])
        choice = {"index": 0, **(as_calls(actions) if asked.get("tools") else as_text(actions))}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        return JSONResponse({"id": "1", "object": "chat.completion", "created": 0, "model": NAME, "choices": [choice], "usage": usage})

    return Starlette(routes=[Route("/v1/models", models), Route("/v1/chat/completions", chat, methods=["POST"])])


def main() -> None:
    async def serve() -> None:
        with bind("127.0.0.1", 0) as listener:
            server = Server(create(), grace_s=1, lifespan="off")
            await serve_until_signalled(server, listener, lambda: print(address_of(listener), flush=True))

    asyncio.run(serve())


if __name__ == "__main__":
    main()
