"""Frames: what shows on a whole page, its frames and closed shadow trees included, as one list of elements in the page's coordinates.

All frames of a page live in one process (sandbox/browser/chromium.py), so one debugging session reaches them all. Each is read by
elements.js in our own isolated world, where the page's scripts cannot meddle, and what a frame's surroundings cover is left out. Frames
inside shadow trees are not entered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from sandbox.browser.cdp.connection import Params
from sandbox.browser.page import ELEMENTS_SCRIPT
from sandbox.session import Element
from warehouse.core.errors import SandboxError

Send = Callable[[str, Params], Awaitable[Params]]

_FRAMES = Path(__file__).with_name("frames.js").read_text(encoding="utf-8").strip()
MAX_DEPTH = 5
MAX_HOSTS = 40


class FrameReader:
    """Reads the frames of one page."""

    def __init__(self, send: Send, world: str) -> None:
        self._send = send
        self._world = world
        self._tools: dict[tuple[str, str], str] = {}
        """Object ids of frames.js in the isolated worlds of documents, by frame and document."""

    def forget(self) -> None:
        """Documents went away."""
        self._tools.clear()

    async def elements(self, area_px: tuple[int, int]) -> tuple[Element, ...]:
        """What shows in the area from the top left corner of the page."""
        tree = (await self._send("Page.getFrameTree", {}))["frameTree"]
        found = await self._read(tree, (0.0, 0.0, float(area_px[0]), float(area_px[1])), 0)
        return tuple(Element.from_json(item) for item in found)

    async def select(self, x: float, y: float, script: str, option: str) -> str:
        """Run a (x, y, option) script in the innermost frame at a point, in its coordinates; its answer."""
        tree = (await self._send("Page.getFrameTree", {}))["frameTree"]
        for _ in range(MAX_DEPTH):
            inner = await self._call(tree["frame"], "frameAt", x, y)
            children = tree.get("childFrames", [])
            if inner is None or inner["frame"] >= len(children):
                break
            tree, x, y = children[inner["frame"]], x - inner["x"], y - inner["y"]
        world_id = await self._world_of(tree["frame"])
        calling = {
            "functionDeclaration": script,
            "executionContextId": world_id,
            "returnByValue": True,
            "arguments": [{"value": value} for value in (round(x), round(y), option)],
        }
        return str(_value(await self._send("Runtime.callFunctionOn", calling)))

    async def inspect(self, function: str, *arguments: Any) -> Any:
        """Value of a function in the main frame."""
        frame = (await self._send("Page.getFrameTree", {}))["frameTree"]["frame"]
        calling = {
            "functionDeclaration": function,
            "executionContextId": await self._world_of(frame),
            "returnByValue": True,
            "arguments": [{"value": value} for value in arguments],
        }
        return _value(await self._send("Runtime.callFunctionOn", calling))

    async def _read(self, tree: Params, clip: tuple[float, float, float, float], depth: int) -> list[Params]:
        """One frame's elements, in its own coordinates, each inner frame replaced by what shows in it."""
        answer = await self._call(tree["frame"], "read", {"clip": clip, "frames": True}, MAX_HOSTS)
        if answer["suspects"]:
            answer = await self._read_closed(tree["frame"], clip) or answer
        found: list[Params] = []
        children = tree.get("childFrames", [])
        for item in answer["found"]:
            if item["role"] != "frame":
                found.append(item)
            elif depth < MAX_DEPTH and item["frame"] < len(children):
                inner = await self._read(children[item["frame"]], tuple(item["clip"]), depth + 1)
                for part in inner:
                    part["x"], part["y"] = part["x"] + item["x"], part["y"] + item["y"]
                shows = await self._call(tree["frame"], "shows", item["frame"], [[part["x"], part["y"]] for part in inner])
                found += [part for part, does in zip(inner, shows, strict=True) if does]
        return found

    async def _read_closed(self, frame: Params, clip: tuple[float, float, float, float]) -> Params | None:
        """The same with the closed shadow trees of elements that may have one; None where none has."""
        tools = await self._tool(frame)
        listed = await self._send(
            "Runtime.callFunctionOn", {"functionDeclaration": "function() { return this.suspects(); }", "objectId": tools}
        )
        properties = await self._send("Runtime.getProperties", {"objectId": listed["result"]["objectId"], "ownProperties": True})
        world_id = await self._world_of(frame)
        pairs: list[Params] = []
        for entry in properties["result"]:
            host_id = entry.get("value", {}).get("objectId")
            if host_id is None or not entry["name"].isdigit():
                continue
            node = (await self._send("DOM.describeNode", {"objectId": host_id}))["node"]
            for root in node.get("shadowRoots", []):
                if root["shadowRootType"] == "closed":
                    resolved = await self._send("DOM.resolveNode", {"backendNodeId": root["backendNodeId"], "executionContextId": world_id})
                    pairs += [{"objectId": host_id}, {"objectId": resolved["object"]["objectId"]}]
        if not pairs:
            return None
        calling = {
            "functionDeclaration": "function(options, limit, ...pairs) { return this.read(options, limit, pairs); }",
            "objectId": tools,
            "arguments": [{"value": {"clip": clip, "frames": True}}, {"value": 0}, *pairs],
            "returnByValue": True,
        }
        answer: Params = _value(await self._send("Runtime.callFunctionOn", calling))
        return answer

    async def _call(self, frame: Params, function: str, *arguments: Any) -> Any:
        calling = {
            "functionDeclaration": f"function(...given) {{ return this.{function}(...given); }}",
            "objectId": await self._tool(frame),
            "arguments": [{"value": value} for value in arguments],
            "returnByValue": True,
        }
        return _value(await self._send("Runtime.callFunctionOn", calling))

    async def _tool(self, frame: Params) -> str:
        key = (str(frame["id"]), str(frame["loaderId"]))
        if key not in self._tools:
            expression = f"({_FRAMES})({ELEMENTS_SCRIPT})"
            made = await self._send("Runtime.evaluate", {"expression": expression, "contextId": await self._world_of(frame)})
            self._tools[key] = str(made["result"].get("objectId"))
        return self._tools[key]

    async def _world_of(self, frame: Params) -> int:
        made = await self._send("Page.createIsolatedWorld", {"frameId": frame["id"], "worldName": self._world})
        return int(made["executionContextId"])


def _value(answer: Params) -> Any:
    if "exceptionDetails" in answer:
        details = answer["exceptionDetails"]
        raise SandboxError(f"Elements could not be read: {details.get('exception', {}).get('description') or details.get('text')}")
    return answer["result"].get("value")
