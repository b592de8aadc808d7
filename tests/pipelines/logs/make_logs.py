"""Logs of agents, made by the libraries themselves against a scripted server: the files beside this one. Each agent is a loop as their
documentation shows it; pictures are of one colour. Run in an environment that has the library:

    python tests/pipelines/logs/make_logs.py openai-chat tests/pipelines/logs/openai_chat.jsonl
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.pipelines.logs.scripted import (
    HEIGHT,
    WIDTH,
    address_of,
    base64_of,
    chat_answer,
    messages_answer,
    responses_answer,
    screen,
    serving,
)

Record = Mapping[str, Any]


def openai_chat() -> Iterator[Record]:
    """Two tasks of an agent that calls functions; the first one's screenshots follow its calls as messages of the user."""
    from openai import OpenAI

    answers = [
        chat_answer(1, "The search box is at the top.", ("click", {"x": 160, "y": 20})),
        chat_answer(2, None, ("type", {"text": "tram\n"}), ("wait", {"seconds": 1})),
        chat_answer(3, "Line 4 leaves at 8:05."),
        chat_answer(4, None, ("bash", {"command": "wc -l notes.txt"})),
        chat_answer(5, "notes.txt has 12 lines."),
    ]
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
        for name in ("click", "type", "wait", "bash")
    ]
    with serving({"/v1/chat/completions": answers}) as address:
        client = OpenAI(base_url=f"{address}/v1", api_key="none")
        for goal, results in (("When does line 4 leave?", None), ("How many lines has notes.txt?", "12 notes.txt")):
            messages: list[Any] = [{"role": "system", "content": "You operate a browser."}]
            seen = {"type": "image_url", "image_url": {"url": address_of(1), "detail": "low"}}
            messages.append({"role": "user", "content": goal if results else [{"type": "text", "text": goal}, seen]})
            for turn in range(2, 5):
                request = {"model": "scripted", "messages": list(messages), "tools": tools, "temperature": 0.5}
                response = client.chat.completions.create(**request)
                yield {"request": request, "response": response.model_dump(mode="json")}
                answer = response.choices[0].message
                if not answer.tool_calls:
                    break
                messages.append(answer.model_dump(mode="json", exclude_none=True))
                messages += [{"role": "tool", "tool_call_id": call.id, "content": results or "done"} for call in answer.tool_calls]
                if results is None:
                    picture = {"type": "image_url", "image_url": {"url": address_of(turn)}}
                    messages.append({"role": "user", "content": [picture]})


def anthropic_computer_use() -> Iterator[Record]:
    """One task of the computer tool, with a thought and older screenshots taken out of the context, as the public demonstration does."""
    from anthropic import Anthropic

    def use(number: int, name: str = "computer", **given: Any) -> dict[str, Any]:
        return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": given}

    answers = [
        messages_answer(1, {"type": "text", "text": "I look at the screen."}, use(1, action="screenshot")),
        messages_answer(
            2,
            {"type": "thinking", "thinking": "Settings are at the top left.", "signature": "c2ln"},
            use(2, action="left_click", coordinate=[100, 50]),
        ),
        messages_answer(3, use(3, action="key", text="ctrl+s")),
        messages_answer(4, use(4, action="scroll", coordinate=[320, 200], scroll_direction="down", scroll_amount=3)),
        messages_answer(5, use(5, "bash", command="ls")),
        messages_answer(6, {"type": "text", "text": "The file is saved."}),
    ]
    tools = [
        {"type": "computer_20250124", "name": "computer", "display_width_px": 2 * WIDTH, "display_height_px": 2 * HEIGHT},
        {"type": "bash_20250124", "name": "bash"},
    ]
    with serving({"/v1/messages": answers}) as address:
        client = Anthropic(base_url=address, api_key="none")
        messages: list[Any] = [{"role": "user", "content": "Save the file."}]
        for turn in range(1, 7):
            request = {
                "model": "scripted",
                "max_tokens": 1024,
                "system": [{"type": "text", "text": "You use a desktop.", "cache_control": {"type": "ephemeral"}}],
                "messages": json.loads(json.dumps(messages)),
                "tools": tools,
                "betas": ["computer-use-2025-01-24"],
            }
            response = client.beta.messages.create(**request)
            said = response.model_dump(mode="json", exclude_none=True)
            yield {"request": request, "response": response.model_dump(mode="json")}
            messages.append({"role": "assistant", "content": said["content"]})
            for block in said["content"]:
                if block["type"] == "tool_use":
                    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64_of(turn)}}
                    content = [{"type": "text", "text": "a.txt"}] if block["name"] == "bash" else [picture]
                    _forget_pictures(messages)
                    result = {"type": "tool_result", "tool_use_id": block["id"], "content": content}
                    messages.append({"role": "user", "content": [result]})


def _forget_pictures(messages: list[Any]) -> None:
    for message in messages:
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] == "tool_result":
                block["content"] = [part for part in block["content"] if part["type"] != "image"]


def openai_computer_use() -> Iterator[Record]:
    """One task of the computer tool; each request names the response before it and holds what is new alone."""
    from openai import OpenAI

    def call(number: int, *actions: Mapping[str, Any]) -> dict[str, Any]:
        said = {"action": actions[0]} if len(actions) == 1 else {"actions": list(actions)}
        fixed = {"type": "computer_call", "pending_safety_checks": [], "status": "completed"}
        return {"id": f"cu_{number}", "call_id": f"call_{number}", **fixed, **said}

    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "The menu is on the right."}]}
    words = {"type": "output_text", "text": "It is sorted by date.", "annotations": []}
    answers = [
        responses_answer(1, call(1, {"type": "screenshot"})),
        responses_answer(2, thought, call(2, {"type": "click", "button": "right", "x": 300, "y": 40})),
        responses_answer(3, call(3, {"type": "double_click", "x": 10, "y": 10}, {"type": "keypress", "keys": ["CTRL", "A"]})),
        responses_answer(4, call(4, {"type": "drag", "path": [{"x": 1, "y": 2}, {"x": 50, "y": 60}, {"x": 100, "y": 120}]})),
        responses_answer(5, call(5, {"type": "scroll", "x": 100, "y": 100, "scroll_x": 0, "scroll_y": -300})),
        responses_answer(6, {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [words]}),
    ]
    tool = {"type": "computer_use_preview", "display_width": WIDTH, "display_height": HEIGHT, "environment": "browser"}
    with serving({"/v1/responses": answers}) as address:
        client = OpenAI(base_url=f"{address}/v1", api_key="none")
        asked: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Sort the mails by date."}]}]
        before: str | None = None
        for turn in range(1, 7):
            request: dict[str, Any] = {"model": "scripted", "tools": [tool], "input": asked, "truncation": "auto"}
            if before is not None:
                request["previous_response_id"] = before
            response = client.responses.create(**request)
            yield {"request": request, "response": response.model_dump(mode="json")}
            before = response.id
            output = {"type": "computer_screenshot", "image_url": address_of(turn)}
            calls = [item for item in response.output if item.type == "computer_call"]
            asked = [{"type": "computer_call_output", "call_id": item.call_id, "output": output} for item in calls]


def otel_genai() -> Iterator[Record]:
    """Two agents' spans, as OpenTelemetry's exporter of JSON posts them: one of the OpenAI library under its instrumentation, which keeps
    texts and calls and no picture, and one that tells OpenTelemetry's helper for generative AI what it sends, pictures too."""
    import os

    os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "span_only"
    from opentelemetry.exporter.otlp.json.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    posted: list[Record] = []

    def take(body: Record) -> Record:
        posted.append(body)
        return {}

    with serving({"/v1/traces": [take]}) as address:
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{address}/v1/traces"), max_export_batch_size=3))
        OpenAIInstrumentor().instrument(tracer_provider=provider)
        with provider.get_tracer("agent").start_as_current_span("agent"):
            list(openai_chat())
        _sent_to_the_helper(provider)
        provider.shutdown()
    yield from posted


def _sent_to_the_helper(provider: Any) -> None:
    from opentelemetry.util.genai.handler import TelemetryHandler
    from opentelemetry.util.genai.types import Blob, InputMessage, OutputMessage, Text, ToolCallRequest, ToolCallResponse

    handler = TelemetryHandler(tracer_provider=provider)
    answers = [
        OutputMessage("assistant", [Text("The lamp is on the left."), ToolCallRequest({"x": 30, "y": 90}, "click", "c1")], "tool_calls"),
        OutputMessage("assistant", [Text("It is in the basket.")], "stop"),
    ]
    asked = [InputMessage("user", [Text("Put the lamp in the basket."), Blob("image/png", "image", screen(1))])]
    for number, answer in enumerate(answers):
        with handler.inference("scripted", request_model="scripted") as call:
            call.input_messages, call.output_messages = list(asked), [answer]
            call.system_instruction, call.response_id = [Text("You operate a shop.")], f"shop-{number}"
        asked += [InputMessage("assistant", answer.parts), InputMessage("tool", [ToolCallResponse("done", "c1")])]
        asked.append(InputMessage("user", [Blob("image/png", "image", screen(2))]))


def browser_use() -> Iterator[Record]:
    """An agent of browser-use on a page of a local server, as `history.save_to_file` writes it; the screenshots are put beside the file."""
    import asyncio
    import os
    import tempfile

    os.environ |= {"ANONYMIZED_TELEMETRY": "false", "BROWSER_USE_LOGGING_LEVEL": "error", "SKIP_LLM_API_KEY_VERIFICATION": "true"}
    from browser_use import Agent, BrowserProfile, ChatOpenAI

    with page_server(PAGE) as page:
        steps: list[list[tuple[str, dict[str, Any]]]] = [
            [("navigate", {"url": page, "new_tab": False})],
            [("input", {"index": "Search", "text": "lamp"}), ("send_keys", {"keys": "Tab"})],
            [("select_dropdown", {"index": "Size", "text": "Large"})],
            [("click", {"index": "Buy"})],
            [("scroll", {"down": True, "pages": 0.5}), ("wait", {"seconds": 1})],
            [("done", {"text": "The lamp is bought.", "success": True})],
        ]
        bodies = [_browser_answer(number, actions) for number, actions in enumerate(steps)]
        with serving({"/v1/chat/completions": bodies}) as address, tempfile.TemporaryDirectory() as folder:
            model = ChatOpenAI(model="scripted", base_url=f"{address}/v1", api_key="none")
            profile = BrowserProfile(
                executable_path=os.environ["CHROMIUM"],
                headless=True,
                chromium_sandbox=False,
                viewport={"width": 640, "height": 400},
                enable_default_extensions=False,
                user_data_dir=None,
            )
            agent: Any = Agent(task="Buy a large lamp.", llm=model, browser_profile=profile, use_judge=False, initial_actions=None)
            history = asyncio.run(agent.run(max_steps=len(steps)))
            history.save_to_file(Path(folder, "history.json"))
            record = json.loads(Path(folder, "history.json").read_text(encoding="utf-8"))
            for step in record["history"]:
                if shot := step["state"]["screenshot_path"]:
                    target = Path(sys.argv[2]).parent / "browser_use_screens" / Path(shot).name
                    target.parent.mkdir(exist_ok=True)
                    target.write_bytes(Path(shot).read_bytes())
            yield record


PAGE = (
    "<title>Shop</title><h1>Shop</h1><input aria-label=Search placeholder=Search>"
    "<select aria-label=Size><option>Small<option>Large</select>"
    "<button onclick=\"document.title='Bought'\">Buy</button><p style='height:2000px'>Lamps"
)


def _browser_answer(number: int, actions: list[tuple[str, dict[str, Any]]]) -> Callable[[Any], Any]:
    """The answer, with elements by the number that the request lists them with."""

    def answer(request: Any) -> Any:
        listed = json.dumps(request["messages"][-1], ensure_ascii=False)
        made = []
        for name, given in actions:
            if isinstance(label := given.get("index"), str):
                found = [int(n) for n, text in re.findall(r"\[(\d+)\](<.*?)(?=\*?\[\d+\]<|$)", listed, re.DOTALL) if label in text[:160]]
                given = given | {"index": found[0]}
            made.append({name: given})
        said = {"evaluation_previous_goal": "Fine.", "memory": f"Step {number}.", "next_goal": "Go on.", "action": made}
        return chat_answer(number, json.dumps({"thinking": f"Thought {number}.", **said}))

    return answer


@contextmanager
def page_server(page: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def playwright_trace(target: Path) -> None:
    """What a script of Playwright's does to the page, as its tracing writes it."""
    import os

    from playwright.sync_api import sync_playwright

    with page_server(PAGE) as page_address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=os.environ["CHROMIUM"], chromium_sandbox=False)
        context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
        context.tracing.start(screenshots=True, title="Buy a large lamp")
        page = context.new_page()
        page.goto(page_address)
        page.wait_for_timeout(300)
        page.fill("input", "lamp")
        page.get_by_placeholder("Search").press("Enter")
        page.select_option("select", "Large")
        page.get_by_role("button", name="Buy").click(modifiers=["Shift"])
        page.mouse.wheel(0, 100)
        page.keyboard.press("Control+A")
        page.title()
        page.go_back()
        context.tracing.stop(path=target)
        browser.close()


FACTORIES: Mapping[str, Callable[[], Iterator[Record]]] = {
    "openai-chat": openai_chat,
    "anthropic-computer-use": anthropic_computer_use,
    "openai-computer-use": openai_computer_use,
    "otel-genai": otel_genai,
    "browser-use": browser_use,
}


def main() -> None:
    name, target = sys.argv[1], Path(sys.argv[2])
    if name == "playwright-trace":
        playwright_trace(target)
        return
    target.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in FACTORIES[name]()), encoding="utf-8")


if __name__ == "__main__":
    main()
