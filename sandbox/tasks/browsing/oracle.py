"""What an oracle does on these pages: it follows the question's route link by link, scrolls to what it wants to click or read, and answers
when the answer is on the screen. From a page off the route it takes the shortest way by links; from a page without links, the address.
"""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from sandbox.actions import Action, Click, Finished, Hotkey, Navigate, Scroll, TypeText
from sandbox.session import Element, Observation
from sandbox.tasks.browsing.instance import Instance
from sandbox.tasks.browsing.pages import HOME, SEARCH
from sandbox.tasks.page_task import PageStepContext

_PLACE_OF_LINK = """(path => {
  const links = [...document.querySelectorAll("a[href]")].filter(each => new URL(each.href).pathname === "/" + path);
  const shown = links.map(each => [each, each.getBoundingClientRect()]).filter(([, box]) => box.width && box.height);
  if (!shown.length) return null;
  const [link, box] = shown[0];
  return {top: box.top, bottom: box.bottom, left: box.left, right: box.right, text: link.innerText.replace(/\\s+/g, " ").trim()};
})"""
_PLACE_OF_TEXT = """(text => {
  const plain = node => node.innerText.replace(/\\s+/g, " ").trim();
  for (const node of document.querySelectorAll("h1, td, td a, td code, li a")) {
    if (plain(node) === text || plain(node).endsWith(". " + text)) {
      const box = node.getBoundingClientRect();
      return {top: box.top, bottom: box.bottom};
    }
  }
  return null;
})"""


async def next_action(instance: Instance, context: PageStepContext) -> Action | None:
    observation = context.observation
    path = _path(observation.url, instance.corpus.host)
    if path is None or (path != SEARCH and path not in instance.corpus.links):
        return Navigate(url=instance.corpus.url(instance.route[0]))
    if path == instance.route[-1]:
        hidden = [text for text in (instance.beside, instance.answer) if text and not is_shown(observation, text)]
        if not hidden:
            return Finished(answer=instance.answer)
        box = await context.evaluate(f"{_PLACE_OF_TEXT}({json.dumps(hidden[0])})")
        return None if box is None else _scroll_to(box, observation)
    if instance.typed and path in (HOME, SEARCH):
        return await _search(instance, path, context)
    return await _follow(_next_path(instance, path), context)


def _path(url: str, host: str) -> str | None:
    """Of a page of the site, from an observation's address."""
    parts = urlsplit(url)
    return None if parts.hostname != host else parts.path.lstrip("/") or HOME


def is_shown(observation: Observation, text: str) -> bool:
    """It can be read on the screen: by itself, or after its section's number."""
    return any(element.text == text or element.text.endswith(f". {text}") for element in observation.elements)


def _next_path(instance: Instance, path: str) -> str:
    """The page after this one on the route: after its last place there. From a page off it, the first of the shortest way to its end."""
    route = instance.route
    places = [place for place, each in enumerate(route) if each == path]
    if places:
        return route[places[-1] + 1]
    back = instance.corpus.route(path, route[-1])
    return back[1] if len(back) > 1 else HOME


async def _follow(path: str, context: PageStepContext) -> Action | None:
    """Click the page's link to a path, or scroll towards it."""
    box = await context.evaluate(f"{_PLACE_OF_LINK}({json.dumps(path)})")
    if box is None:
        return Navigate(url=_absolute(context.observation.url, path))
    link = next((each for each in context.observation.elements if each.role == "link" and _is_at(each, box)), None)
    return Click(x=link.x_px, y=link.y_px) if link is not None else _scroll_to(box, context.observation)


def _is_at(element: Element, box: dict[str, float | str]) -> bool:
    left, right, top, bottom = (float(box[side]) for side in ("left", "right", "top", "bottom"))
    return element.text == box["text"] and left - 1 <= element.x_px <= right + 1 and top - 1 <= element.y_px <= bottom + 1


def _absolute(url: str, path: str) -> str:
    return f"https://{urlsplit(url).hostname}/{path}"


def _scroll_to(box: dict[str, float], observation: Observation) -> Action:
    is_below = float(box["top"]) + float(box["bottom"]) > observation.height_px
    return Scroll(direction="down" if is_below else "up")


async def _search(instance: Instance, path: str, context: PageStepContext) -> Action | None:
    """Type the name into the search box and take the page from the results. The box stands on every page, at the top."""
    box = await context.evaluate(f"{_PLACE_OF_LINK}({json.dumps(instance.route[-1])})") if path == SEARCH else None
    if box is not None:
        return await _follow(instance.route[-1], context)
    field = next((each for each in context.observation.elements if each.role == "input"), None)
    button = next((each for each in context.observation.elements if each.role == "button"), None)
    if field is None or button is None:
        return Hotkey(keys=("home",))
    typed = await context.evaluate("document.querySelector('input').value")
    if typed == instance.typed:
        return Click(x=button.x_px, y=button.y_px)
    if "focused" in field.states and (typed == "" or "selected" in field.states):
        return TypeText(text=instance.typed)
    return Click(x=field.x_px, y=field.y_px, count=3 if typed else 1)
