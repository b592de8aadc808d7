"""Oracles of tasks that are solved by pointing: click one thing, click in order, tick options, open sections, tabs and menus."""

from __future__ import annotations

import re
from functools import cache

from sandbox.actions import Action, Click, MoveTo, Wait
from sandbox.session import Element
from sandbox.tasks.miniwob.oracle_screen import Screen, click, hits, number, wait


def only_button(screen: Screen) -> Action | None:
    return click(screen.first("button"))


def button_one(screen: Screen) -> Action | None:
    return click(screen.first("button", text="ONE"))


def quoted_button(screen: Screen) -> Action | None:
    return click(screen.first("button", text=screen.quote()))


def quoted_link(screen: Screen) -> Action | None:
    return click(screen.first("link", text=screen.quote()))


def close_dialog(screen: Screen) -> Action | None:
    return click(screen.first("button", text="x"))


def named_tab(screen: Screen) -> Action | None:
    named = screen.match(r"(Tab #\d)")
    return click(screen.first("tab", text=named[0])) if named else None


def only_field(screen: Screen) -> Action | None:
    return click(screen.first("input"))


def nth_field(screen: Screen) -> Action | None:
    position = screen.match(r"(\d)(?:st|nd|rd)")
    fields = screen.all("input")
    return click(fields[int(position[0]) - 1]) if position and len(fields) >= int(position[0]) else None


def widget(screen: Screen) -> Action | None:
    """click-widget calls a one-line field "text"."""
    return click(screen.first({"text": "input"}.get(screen.quote(), screen.quote())))


def radio_option(screen: Screen) -> Action | None:
    named = screen.match(r"Select (.+) and click Submit")
    option = screen.first("radio", text=named[0]) if named else None
    if option is None:
        return None
    return click(screen.first("button", text="Submit")) if "checked" in option.states else click(option)


def tick_boxes(screen: Screen, wanted: list[str]) -> Action | None:
    """Untick what is wrong first, then tick in the order of `wanted`, then submit."""
    boxes = screen.all("checkbox")
    for box in boxes:
        if "checked" in box.states and box.text not in wanted:
            return click(box)
    for text in wanted:
        unticked = next((box for box in boxes if box.text == text and "checked" not in box.states), None)
        if unticked is not None:
            return click(unticked)
    return click(screen.first("button", text="Submit"))


def checkboxes(screen: Screen) -> Action | None:
    named = screen.match(r"Select (.*) and click Submit")
    return tick_boxes(screen, named[0].split(", ")) if named else None


def button_sequence(screen: Screen) -> Action | None:
    """Each button counts once and the second ends the episode: after a wrong first there is no way back."""
    one, two = screen.first("button", text="ONE"), screen.first("button", text="TWO")
    pushed = [name for action in screen.history if (name := _pushed(action, one, two))]
    if not pushed:
        return click(one)
    return click(two) if pushed == ["ONE"] else None


def _pushed(action: Action, one: Element | None, two: Element | None) -> str | None:
    # TWO is drawn over ONE, so a point on both is a push of TWO. A covered button's box is around where it can be hit.
    if two is not None and hits(action, two):
        return "TWO"
    return "ONE" if one is not None and isinstance(action, Click) and hits(action, one) else None


def expand_and_submit(screen: Screen) -> Action | None:
    header = screen.first("header")
    if header is None:
        return None
    return click(screen.first("button", text="Submit")) if "expanded" in header.states else click(header)


SYNONYMS = [
    line.split()
    for line in (
        "big large huge enormous gigantic",
        "small tiny little mini petite",
        "red scarlet crimson vermillion",
        "happy cheerful joyful gleeful delighted",
        "sad unhappy sorrowful miserable tragic",
        "angry mad furious irritated",
        "evil wicked immoral sinful corrupt depraved",
        "wrong incorrect mistaken erroneous",
        "real genuine actual",
        "strange odd peculiar unusual weird",
        "stop cease halt end finish",
        "scared terrified panicked fearful frightened afraid",
        "quiet calm peaceful serene mild",
        "old aged archaic",
        "love like adore favor",
        "kill murder assassinate",
        "keep retain preserve sustain maintain",
        "hide conceal camouflage",
        "hate despise loathe detest dislike",
        "funny humorous amusing comical laughable",
        "fat fleshy plump chubby",
        "stupid dumb dull unwise",
        "delicious savory delectable appetizing",
        "cut slice carve chop",
        "brave courageous fearless",
        "begin start initiate launch",
        "answer reply response",
        "television televisions TV TVs",
        "house home houses homes",
        "fire flame fires flames",
        "pig pork swine",
        "rabbit rabbits bunny bunnies",
        "car cars automobile automobiles vehicle vehicles",
        "water",
    )
]
"""What a speaker of English knows and the page asks for."""


def similar_checkboxes(screen: Screen) -> Action | None:
    named = screen.match(r"similar to (.*) and click Submit")
    if not named:
        return None
    groups = [group for word in named[0].split(", ") for group in SYNONYMS if word in group]
    boxes = [box.text for box in screen.all("checkbox")]
    return tick_boxes(screen, [text for group in groups for text in boxes if text in group])


DIGIT_ROWS = {
    "0": "0110 1001 1001 1001 1001 1001 0110",
    "1": "0010 0110 0010 0010 0010 0010 0010",
    "2": "0110 1001 1001 0010 0100 1000 1111",
    "3": "0110 1001 0001 0110 0001 1001 0110",
    "4": "1000 1010 1010 1111 0010 0010 0010",
    "5": "1111 1000 1000 1110 0001 1001 0110",
    "6": "0110 1001 1000 1110 1001 1001 0110",
    "7": "1111 1001 0001 0010 0010 0100 0100",
    "8": "0110 1001 1001 0110 1001 1001 0110",
    "9": "0110 1001 1001 0111 0001 1001 0110",
}
"""The picture beside the boxes, seven rows of four."""


def draw_digit(screen: Screen) -> Action | None:
    pattern = DIGIT_ROWS.get(screen.quote(), "").replace(" ", "")
    boxes = screen.all("checkbox")
    if len(boxes) != len(pattern):
        return None
    for box, bit in zip(boxes, pattern, strict=True):
        if ("checked" in box.states) != (bit == "1"):
            return click(box)
    return click(screen.first("button", text="Submit"))


def find_link_in_tabs(screen: Screen) -> Action | None:
    """Look through the tabs in order, beginning after the open one, until the link shows."""
    return _find_link(screen, "tab", "selected")


def find_link_in_sections(screen: Screen) -> Action | None:
    """Open the sections in order, beginning after the open one, until the link shows."""
    return _find_link(screen, "header", "expanded")


def _find_link(screen: Screen, role: str, is_open: str) -> Action | None:
    link = screen.first("link", text=screen.quote())
    if link is not None:
        return click(link)
    parts = screen.all(role)
    open_index = next((i for i, part in enumerate(parts) if is_open in part.states), len(parts) - 1)
    return click(parts[(open_index + 1) % len(parts)]) if parts else None


def ticket(screen: Screen) -> Action | None:
    """buy-ticket: the cheapest, dearest, shortest or longest of the offers."""
    offers = [(button, screen.before(button, "text")) for button in screen.all("button")]
    criterion = screen.match(r"with the (.+)\.")
    if not criterion or not offers:
        return None
    best = min if criterion[0] in ("cheapest cost", "shortest duration") else max

    def value(offer: tuple[Element, Element | None]) -> int:
        button, duration = offer
        if "cost" in criterion[0]:
            return int(button.text.split("$")[1])
        hours, minutes = (int(part) for part in re.findall(r"\d+", duration.text if duration else "0 0"))
        return hours * 60 + minutes

    return click(best(offers, key=value)[0])


def odd_or_even(screen: Screen) -> Action | None:
    for text in screen.all("text"):
        value = number(text.text)
        if value is None:
            continue
        answer = screen.before(text, "button") if value % 2 else screen.after(text, "button")
        if answer is not None and "selected" not in answer.states:
            return click(answer)
    return click(screen.first("button", text="Submit"))


def generate_number(screen: Screen) -> Action | None:
    shown = screen.first("text")
    value = number(shown.text) if shown else None
    limit = int((screen.match(r"than (\d+)") or ("0",))[0])
    tests = {"less": lambda n: n < limit, "greater": lambda n: n > limit, "odd": lambda n: n % 2 == 1, "even": lambda n: n % 2 == 0}
    test = next((test for word, test in tests.items() if f" {word} " in screen.instruction), None)
    if test is None:
        return None
    return click(screen.first("button", text="Submit" if value is not None and test(value) else "Generate"))


def menu_path(screen: Screen) -> Action | None:
    """Sub-menus open when the pointer rests on their item; only the last item is clicked, since any click chooses."""
    path = screen.instruction.removeprefix("Select ").split(">")
    items = {item.text: item for item in screen.all("item")}
    visible = [name for name in path if name in items]
    if not visible:
        return None
    deepest = items[visible[-1]]
    if visible[-1] == path[-1]:
        return click(deepest)
    return wait(0.5) if "selected" in deepest.states else MoveTo(x=deepest.x_px, y=deepest.y_px)


MENU_ICONS = {
    "floppy disk": "Save",
    "to the start": "Prev",
    "stop": "Stop",
    "play": "Play",
    "to the end": "Next",
    "zoom in": "Zoom In",
    "zoom out": "Zoom Out",
}


def icon_menu(screen: Screen) -> Action | None:
    """Items are asked for by label or by icon; four of them are in a sub-menu."""
    icon = next((e for e in screen.elements if e.role == "image" and e.text in MENU_ICONS), None)
    label = screen.quote(1) if len(screen.quoted) > 1 else MENU_ICONS[icon.text] if icon else ""
    item, playback = screen.first("item", text=label), screen.first("item", text="Playback")
    if item is not None:
        return click(item)
    if playback is None:
        return click(screen.first("button", text="Menu"))
    return wait(0.5) if isinstance(screen.last, Click) and hits(screen.last, playback) else click(playback)


def wait_between(screen: Screen) -> Action | None:
    """button-delay: the waits after the first click have to add up to what is asked, with little to spare."""
    asked = screen.match(r"wait (\d+) seconds?")
    if not asked or not any(isinstance(action, Click) for action in screen.history):
        return click(screen.first("button", text="ONE"))
    waited = sum(action.seconds for action in screen.history if isinstance(action, Wait))
    return click(screen.first("button", text="TWO")) if waited >= int(asked[0]) else wait(float(asked[0]))


def buy_low(screen: Screen) -> Action | None:
    limit = screen.match(r"less than \$([\d.]+?)\.?$")
    price = next((e for e in screen.all("text") if re.fullmatch(r"\$[\d.]+", e.text)), None)
    if limit and price is not None and float(price.text[1:]) <= float(limit[0]):
        return click(screen.first("button", text="Buy"))
    return wait(0.1)


LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
SMART_SHARE = 0.45
"""How often the page's player O moves by plan; else at random."""


def tic_tac_toe(screen: Screen) -> Action | None:
    """The move that wins most often against a player who is sometimes careless; only a win counts."""
    cells = screen.all("shape", "image")
    if len(cells) != 9:
        return None
    board = "".join(cell.text if cell.text in ("X", "O") else " " for cell in cells)
    free = [i for i in (4, 0, 2, 6, 8, 1, 3, 5, 7) if board[i] == " "]
    return click(cells[max(free, key=lambda i: _chance(_play(board, i, "X"), "O"))]) if free else None


def _play(board: str, index: int, mark: str) -> str:
    return board[:index] + mark + board[index + 1 :]


@cache
def _chance(board: str, turn: str) -> float:
    """How likely X wins from here, if O's planned moves are its best ones."""
    for mark in "XO":
        if any(all(board[i] == mark for i in line) for line in LINES):
            return float(mark == "X")
    values = [_chance(_play(board, i, turn), "O" if turn == "X" else "X") for i in range(9) if board[i] == " "]
    if not values:
        return 0.0
    return max(values) if turn == "X" else SMART_SHARE * min(values) + (1 - SMART_SHARE) * sum(values) / len(values)
