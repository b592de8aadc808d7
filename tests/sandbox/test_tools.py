"""The tools beside terminal and files: Python that keeps its state, search over a library or an endpoint, MCP servers, and what any tool
says to a call that it does not take."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import urllib.parse
from collections.abc import Callable, Coroutine, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from sandbox.actions import ToolCall
from sandbox.terminal import control
from sandbox.terminal.bubblewrap import JailLimits
from sandbox.terminal.config import TOOLS_VARIABLE, machine_settings
from sandbox.terminal.mcp import McpServer
from sandbox.terminal.search import Document, HttpLibrary, LocalLibrary, readable
from sandbox.terminal.shell import TerminalLimits
from sandbox.terminal.tools import NAMES, Tools, ToolSettings
from tests.sandbox.tool_sessions import bash, fail
from warehouse.core.errors import ConfigError, JailCrashed, SandboxError, SandboxTimeout

Use = Callable[[Tools], Coroutine[Any, Any, Any]]

SERVER = """
import json, os, sys, time
TAKES = {"inputSchema": {"type": "object"}}
TOOLS = [{"name": "add", "description": "Adds", **TAKES}, {"name": "fail", "description": "Fails", **TAKES},
         {"name": "slow", **TAKES}, {"name": "where", **TAKES}, {"name": "end", **TAKES}, {"name": "odd", **TAKES}]
LOGGED = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "at work"}}
INFO = {"name": "test", "version": "1"}
started = False
for line in sys.stdin:
    message = json.loads(line)
    method, number = message["method"], message.get("id")
    if number is None:
        started = started or method == "notifications/initialized"
        continue
    print(json.dumps(LOGGED), flush=True)
    if method == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": INFO}
    elif method == "tools/list":
        cursor = message.get("params", {}).get("cursor")
        result = {"tools": TOOLS[2:]} if cursor == "more" else {"tools": TOOLS[:2], "nextCursor": "more"}
    elif not started:
        raise SystemExit("not initialised")
    elif message["params"]["name"] == "add":
        total = sum(message["params"]["arguments"]["numbers"])
        result = {"content": [{"type": "text", "text": str(total)}, {"type": "image", "data": "", "mimeType": "image/png"}]}
    elif message["params"]["name"] == "fail":
        result = {"content": [{"type": "text", "text": "no such thing"}], "isError": True}
    elif message["params"]["name"] == "where":
        result = {"content": [{"type": "text", "text": f"{os.getcwd()} {sorted(os.environ)}"}]}
    elif message["params"]["name"] == "end":
        raise SystemExit
    elif message["params"]["name"] == "odd":
        result = {"content": "a text where a list belongs"}
    else:
        time.sleep(60)
    print(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}), flush=True)
"""


@pytest.fixture
def with_tools() -> Callable[..., Any]:
    def run(use: Use, **settings: Any) -> Any:
        async def whole() -> Any:
            tools = await Tools.open(ToolSettings(**settings))
            try:
                return await use(tools)
            finally:
                await tools.close()

        return asyncio.run(whole())

    return run


async def python(tools: Tools, code: str, **more: Any) -> str:
    return await tools.call(ToolCall(name="JupyterCI", arguments={"code": code, **more}))


def test_python_keeps_its_state_and_prints_the_last_value(with_tools: Any) -> None:
    async def use(tools: Tools) -> None:
        assert await python(tools, "import math\nx = 6\ndef f(y):\n    return x * y") == "[no output]"
        assert await python(tools, "print('said')\nf(7)") == "said\n42\n"
        assert await python(tools, "None") == "[no output]"
        assert await python(tools, "import sys; print('err', file=sys.stderr); 'é'") == "err\n'é'\n"
        assert await python(tools, "class A: pass\nimport pickle\ntype(pickle.loads(pickle.dumps(A())))") == "<class '__main__.A'>\n"
        assert await python(tools, "") == "[no output]"

    with_tools(use)


def test_python_shares_the_workspace_with_the_terminal(with_tools: Any) -> None:
    async def use(tools: Tools) -> None:
        await tools.call(ToolCall(name="execute_bash", arguments={"command": "echo 'value = 5' > mine.py; echo 1,2 > t.csv"}))
        assert await python(tools, "import mine; mine.value") == "5\n"
        assert await python(tools, "open('out.txt', 'w').write('x'); open('t.csv').read()") == "'1,2\\n'\n"
        assert tools.jail.workspace.read("out.txt") == b"x"

    with_tools(use)


def test_errors_of_python_come_back_as_tracebacks_of_the_code_alone(with_tools: Any) -> None:
    async def use(tools: Tools) -> None:
        text = await python(tools, "def f():\n    return 1 / 0\nf()")
        assert text.startswith('Traceback (most recent call last):\n  File "<cell 1>", line 3, in <module>\n    f()\n')
        assert text.endswith("ZeroDivisionError: division by zero\n") and "repl" not in text and "code.py" not in text
        assert "SyntaxError" in await python(tools, "for (")
        assert "was never closed" in await python(tools, "x = [")
        assert "RecursionError" in await python(tools, "def g(): return g()\ng()")
        assert "EOFError" in await python(tools, "input()")
        assert "SystemExit: 3" in await python(tools, "raise SystemExit(3)")
        assert await python(tools, "1 + 1") == "2\n"

    with_tools(use)


def test_python_that_lasts_is_interrupted_and_keeps_its_variables(with_tools: Any) -> None:
    async def use(tools: Tools) -> None:
        text = await python(tools, "x = 1\nimport time\nprint('begun')\nwhile True: time.sleep(0.01)", timeout=3)
        assert text.startswith("begun\nTraceback") and "KeyboardInterrupt" in text and "variables are kept" in text
        assert await python(tools, "x") == "1\n"

    with_tools(use)


def test_python_that_cannot_be_interrupted_is_killed_and_starts_again(with_tools: Any) -> None:
    async def use(tools: Tools) -> None:
        text = await python(tools, "import signal\nsignal.signal(2, signal.SIG_IGN)\nx = 1\nwhile True: pass", timeout=0.3)
        assert "was killed: variables are lost" in text
        assert "NameError" in await python(tools, "x")
        text = await python(tools, "import os; print('last', flush=True); os._exit(4)")
        assert text == "last\n[Python ended with exit code 4: variables are lost; the next call starts a new interpreter]"
        assert await python(tools, "2") == "2\n"

    with_tools(use)


def test_output_of_python_is_cut(with_tools: Any) -> None:
    async def use(tools: Tools) -> None:
        text = await python(tools, "for n in range(100_000): print(n)")
        assert text.startswith("0\n1\n") and text.endswith("99999\n") and "characters left out" in text and len(text) < 8200
        assert "more than 64 MiB" in await python(tools, "while True: print('x' * 10000)", timeout=60)
        assert await python(tools, "3") == "3\n"

    with_tools(use)


WRONG_CALLS = (
    (ToolCall(name="shell", arguments={"command": "ls"}), f"there is no tool 'shell'; there are {', '.join(NAMES)}"),
    (ToolCall(name="execute_bash"), "command: Field required. It takes command"),
    (ToolCall(name="execute_bash", arguments={"command": 5}), "command: Input should be a valid string"),
    (ToolCall(name="execute_bash", arguments={"cmd": "ls"}), "cmd: Extra inputs"),
    (ToolCall(name="execute_bash", arguments={"command": "a\0b"}), "NUL"),
    (ToolCall(name="JupyterCI", arguments={"code": "1", "timeout": -1}), "timeout"),
    (ToolCall(name="JupyterCI", arguments={"code": "1", "timeout": 9999}), "timeout"),
    (ToolCall(name="Search", arguments={"query": ""}), "query"),
    (ToolCall(name="LinkReader", arguments={"url": "library:///none"}), "there is no document at library:///none"),
    (ToolCall(name="LinkReader", arguments={"url": "file:///etc/passwd"}), "there is no document"),
    (ToolCall(name="mcp", arguments={"server": "none", "tool": "x"}), "there is no MCP server 'none'; there are: none"),
)


def test_a_wrong_call_is_answered_with_what_is_wrong(with_tools: Any) -> None:
    async def use(tools: Tools) -> None:
        for call, said in WRONG_CALLS:
            text = await tools.call(call)
            assert text.startswith("error: ") and said in text, call

    with_tools(use)


LIBRARY = LocalLibrary(
    {
        "library:///bees.txt": Document(title="Bees", text="Bees make honey.\nA hive has one queen.\n" + "Bees fly far.\n" * 3),
        "library:///ants.txt": Document(title="Ants", text="Ants build hills.\nA hill has many queens.\n"),
        "library:///long.txt": Document(title="Long", text="Nothing to see.\n" * 2000 + "The treasure is in the well."),
    }
)


def test_search_ranks_documents_and_links_are_read(with_tools: Any) -> None:
    async def use(tools: Tools) -> None:
        found = await tools.call(ToolCall(name="Search", arguments={"query": "honey of bees"}))
        assert found.startswith("1. Bees\n   library:///bees.txt\n") and "honey" in found
        assert (await tools.call(ToolCall(name="Search", arguments={"query": "queens hill"}))).startswith("1. Ants")
        assert "No document fits" in await tools.call(ToolCall(name="Search", arguments={"query": "zebra"}))
        page = await tools.call(ToolCall(name="LinkReader", arguments={"url": "library:///bees.txt", "description": ""}))
        assert page.startswith("Bees\n\nBees make honey.")
        asked = {"url": "library:///long.txt", "description": "where is the treasure"}
        page = await tools.call(ToolCall(name="LinkReader", arguments=asked))
        assert "The treasure is in the well." in page and "characters left out" in page and len(page) < 9000

    with_tools(use, library=LIBRARY)


def test_a_folder_of_documents_is_a_library(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/page.html").write_text(
        "<html><head><title>A  page</title><style>p{}</style></head><body><h1>Head</h1><p>One &amp; <b>two</b></p>"
        "<script>var x = '<p>hidden</p>'</script><ul><li>first<li>second</ul></body></html>"
    )
    (tmp_path / "note.md").write_text("# Note\nOne only\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    library = LocalLibrary.from_folder(tmp_path)

    async def use() -> None:
        assert [hit.url for hit in await library.search("two")] == ["library:///sub/page.html"]
        page = await library.read("library:///sub/page.html")
        assert page == Document(title="A page", text="Head\nOne & two\nfirst\nsecond")
        assert (await library.read("library:///note.md")).title == "note"

    asyncio.run(use())
    with pytest.raises(ConfigError, match="not a folder"):
        LocalLibrary.from_folder(tmp_path / "none")


def test_broken_html_is_read_all_the_same() -> None:
    assert readable("<p>a<div>b</section><li>c</p></i><title>t", "none").text.split() == ["a", "b", "c"]
    assert readable("<title>A</title><main>text<!-- not this --> &amp; more", "none") == Document(title="A", text="text & more")
    assert readable("", "none") == readable("<!-- nothing -->", "none") == Document(title="none", text="")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "page", ["<a " * 100_000, "<a href='" * 50_000, "<!--" * 100_000, "<div>" * 100_000, "<b>" * 20_000 + "</i>" * 20_000]
)
def test_html_that_never_ends_is_read_in_time(page: str) -> None:
    assert readable(f"<p>before</p>{page}", "none").text == "before"


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[str]]]:
    """A search service on loopback, and the paths it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
            status, kind, body = 200, "application/json", ""
            if self.path.startswith("/search"):
                hit = {"url": "doc:1", "title": f"About {query['q']}", "snippet": "s"}
                body = "no json" if query["q"] == "broken" else json.dumps([hit] * 9)
            elif query["url"] == "doc:1":
                kind, body = "text/html; charset=utf-8", "<title>T</title><p>Text &amp; more</p>"
            elif query["url"] == "doc:away":
                status = 302
            else:
                status = 404
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if status == 302:
                self.send_header("Location", "/search?q=redirected")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()
    thread.join()


def test_search_over_an_endpoint(with_tools: Any, endpoint: tuple[str, list[str]]) -> None:
    address, asked = endpoint
    library = HttpLibrary(f"{address}/search?q={{query}}", f"{address}/read?url={{url}}")

    async def use(tools: Tools) -> None:
        found = await tools.call(ToolCall(name="Search", arguments={"query": "a&b c=/é"}))
        assert found.count("About a&b c=/é") == 5
        assert await tools.call(ToolCall(name="LinkReader", arguments={"url": "doc:1", "description": "x"})) == "T\n\nText & more"
        answer = await tools.call(ToolCall(name="LinkReader", arguments={"url": "http://169.254.169.254/"}))
        assert answer.startswith("error: nothing found")
        with pytest.raises(SandboxError, match="302"):
            await tools.call(ToolCall(name="LinkReader", arguments={"url": "doc:away"}))
        with pytest.raises(SandboxError, match="expected a JSON list"):
            await tools.call(ToolCall(name="Search", arguments={"query": "broken"}))

    with_tools(use, library=library)
    assert all(path.startswith(("/search?q=", "/read?url=")) for path in asked) and not any("redirected" in path for path in asked)


def test_an_endpoint_that_is_not_there_is_a_failure_of_ours(with_tools: Any, endpoint: tuple[str, list[str]]) -> None:
    library = HttpLibrary("http://127.0.0.1:9/search?q={query}", "http://127.0.0.1:9/read?url={url}", timeout_s=5)
    with pytest.raises(SandboxError, match="cannot be reached"):
        with_tools(lambda tools: tools.call(ToolCall(name="Search", arguments={"query": "x"})), library=library)
    with pytest.raises(ConfigError, match=r"holds \{query\}"):
        HttpLibrary("http://127.0.0.1:9/search", "http://127.0.0.1:9/read?url={url}")
    with pytest.raises(ConfigError, match="http or https"):
        HttpLibrary("file:///{query}", "http://127.0.0.1:9/read?url={url}")


async def mcp(tools: Tools, tool: str, server: str = "test", **arguments: Any) -> str:
    return await tools.call(ToolCall(name="mcp", arguments={"server": server, "tool": tool, "arguments": arguments}))


@pytest.mark.parametrize("place", ["jail", "host"])
def test_mcp_servers_are_started_asked_and_ended(with_tools: Any, place: str) -> None:
    python_here = "/usr/bin/python3" if place == "jail" else sys.executable
    server = McpServer(command=(python_here, "-c", SERVER), runs_in=place, environment={"GIVEN": "1"}, timeout_s=60)

    async def use(tools: Tools) -> None:
        assert await mcp(tools, "add", numbers=[1, 2, 3]) == "6\n[image that is not text]"
        assert await mcp(tools, "fail") == "error: no such thing"
        assert "has no tool 'fly'; it has add, fail, slow, where, end, odd" in await mcp(tools, "fly")
        assert (await mcp(tools, "")).startswith("add: Adds\n  arguments: {")
        assert "answered tools/call with something else" in await mcp(tools, "odd")
        where = await mcp(tools, "where")
        assert "'GIVEN'" in where and "VIRTUAL_ENV" not in where and ("/workspace " in where) == (place == "jail")
        assert (await mcp(tools, "end")).startswith("error: MCP server 'test' has ended")
        assert await mcp(tools, "add", numbers=[4]) == "4\n[image that is not text]"

    with_tools(use, mcp_servers={"test": server})


SDK_SERVER = """
from mcp.server import MCPServer
from mcp_types import EmbeddedResource, TextResourceContents

server = MCPServer("real")

@server.tool()
def add(numbers: list[int]) -> int:
    "Adds"
    return sum(numbers)

@server.tool()
def page() -> EmbeddedResource:
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri="doc:1", text="what it says"))

@server.tool()
def fail() -> str:
    raise ValueError("no such thing")

server.run("stdio")
"""


def test_a_server_made_with_the_official_sdk_is_used(with_tools: Any) -> None:
    server = McpServer(command=(sys.executable, "-c", SDK_SERVER), runs_in="host", timeout_s=60)

    async def use(tools: Tools) -> None:
        assert (await mcp(tools, "")).startswith('add: Adds\n  arguments: {"')
        assert await mcp(tools, "add", numbers=[1, 2, 3]) == "6"
        assert (await mcp(tools, "add", numbers="x")).startswith("error: ")
        assert await mcp(tools, "page") == "what it says"
        assert await mcp(tools, "fail") == "error: Error executing tool fail"

    with_tools(use, mcp_servers={"test": server})


def test_an_mcp_server_that_does_not_answer_or_start_is_reported(with_tools: Any) -> None:
    servers = {
        "test": McpServer(command=("/usr/bin/python3", "-c", SERVER), timeout_s=2),
        "none": McpServer(command=("/usr/bin/no-such-program",)),
        "mad": McpServer(command=("/usr/bin/yes",)),
        "quiet": McpServer(command=("/usr/bin/true",)),
    }

    async def use(tools: Tools) -> None:
        assert "did not answer tools/call within 2 s" in await mcp(tools, "slow")
        assert await mcp(tools, "add", numbers=[4]) == "4\n[image that is not text]"
        assert "cannot be started" in await mcp(tools, "x", server="none")
        assert "not a JSON-RPC message" in await mcp(tools, "x", server="mad")
        assert "has ended" in await mcp(tools, "x", server="quiet")

    with_tools(use, mcp_servers=servers)


IN_JAIL = McpServer(command=("/usr/bin/python3", "-c", SERVER), timeout_s=5)
QUICK_AND_ENDLESS = {
    "a command": (bash("true"), bash("trap '' INT; sleep 100")),
    "Python": (
        ToolCall(name="JupyterCI", arguments={"code": "1"}),
        ToolCall(name="JupyterCI", arguments={"code": "import time; time.sleep(100)", "timeout": 1}),
    ),
    "an MCP server": (
        ToolCall(name="mcp", arguments={"server": "test", "tool": "add", "arguments": {"numbers": [1]}}),
        ToolCall(name="mcp", arguments={"server": "test", "tool": "slow"}),
    ),
}


@pytest.mark.parametrize("tool", QUICK_AND_ENDLESS)
@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize(
    ("signum", "error"), [(signal.SIGKILL, JailCrashed), pytest.param(signal.SIGSTOP, SandboxTimeout, marks=pytest.mark.slow)]
)
def test_a_jail_that_fails_is_reported_by_no_tool(
    with_tools: Any, monkeypatch: pytest.MonkeyPatch, tool: str, has_begun: bool, signum: signal.Signals, error: type[SandboxError]
) -> None:
    """The agent would take it for its own doing."""
    quick, endless = QUICK_AND_ENDLESS[tool]

    async def use(tools: Tools) -> None:
        calling = None
        if has_begun:
            assert not (await tools.call(quick)).startswith("error: ")
            calling = asyncio.ensure_future(tools.call(endless))
            await asyncio.sleep(0.2)
        monkeypatch.setattr(control, "ANSWER_TIMEOUT_S", 0.5)
        fail(tools.jail, signum)
        with pytest.raises(error):
            await (calling or tools.call(endless))

    with_tools(use, mcp_servers={"test": IN_JAIL}, terminal=TerminalLimits(command_s=1))


def test_a_jail_that_answers_nothing_is_closed_at_once(with_tools: Any) -> None:
    """It is not asked to end the servers in it."""

    async def use(tools: Tools) -> None:
        assert await mcp(tools, "add", numbers=[1]) == "1\n[image that is not text]"
        fail(tools.jail, signal.SIGSTOP)
        async with asyncio.timeout(control.ANSWER_TIMEOUT_S / 2):
            await tools.close()
        assert not psutil.pid_exists(tools.jail.pid)

    with_tools(use, mcp_servers={"test": IN_JAIL.model_copy(update={"timeout_s": 60})})


def test_the_machines_tools_are_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/note.txt").write_text("The treasure is in the well.")
    file = tmp_path / "tools.yaml"
    servers = "mcp_servers:\n  test: {command: [/usr/bin/python3, -c, pass]}\n"
    file.write_text(f"library: {{folder: {tmp_path}/docs}}\n{servers}network: open\nlimits: {{workspace_mib: 9}}\n")
    monkeypatch.setenv(TOOLS_VARIABLE, str(file))
    settings = machine_settings()
    assert settings.jail.workspace_mib == 9 and settings.jail.network == "open" and settings.jail.processes == JailLimits().processes
    assert settings.mcp_servers["test"].command[0] == "/usr/bin/python3"
    assert [hit.title for hit in asyncio.run(settings.library.search("treasure"))] == ["note"]
    monkeypatch.delenv(TOOLS_VARIABLE)
    assert machine_settings().jail == JailLimits() and JailLimits().network == "none"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("library: {folder: /none/such}", "not a folder"),
        ("library: {search: 'http://localhost/?q={query}'}", "either folder, or both"),
        ("library: {folder: a, search: b, read: c}", "either folder, or both"),
        ("limits: {memory_mib: 1}", "memory_mib"),
        ("limits: {colour: 1}", "colour"),
        ("limits: {network: open}", "network"),
        ("network: some", "network"),
        ("servers: {}", "servers"),
        ("[", "malformed"),
        (None, "cannot be read"),
    ],
)
def test_a_file_of_tools_that_is_wrong_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, said: str) -> None:
    file = tmp_path / "tools.yaml"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv(TOOLS_VARIABLE, str(file))
    with pytest.raises(ConfigError, match=said):
        machine_settings()
