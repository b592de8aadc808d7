"""Oracles of tasks with lists to look through: mail, posts, search results, contacts, folders, menus of food."""

from __future__ import annotations

from sandbox.actions import Action, Click
from sandbox.session import Element
from sandbox.tasks.miniwob.oracle_screen import Screen, click, fill, fill_all, ordinal, scroll_down

LIST_POINT = (75, 150)
"""Inside the scrolling list of the mail, post and food pages."""


def mail(screen: Screen) -> Action | None:
    """All mail tasks but the paraphrased ones: find the sender's mail, then star, delete, answer or forward it."""
    sender = screen.match(r"email by (.+?) and (?:click|reply|forward)")
    if not sender:
        return None
    if (star := "click the star") in screen.instruction or "click the trash" in screen.instruction:
        return _in_list(screen, sender[0], "star" if star in screen.instruction else "trash")
    text = screen.match(r'with the text "(.*)"')
    if text:
        return _answer(screen, sender[0], text[0])
    to = screen.match(r"forward that email to (.+)\.$")
    return _forward(screen, sender[0], to[0]) if to else None


NAME = r"([A-Z][\w'-]*)"
SENDER = (rf"(?:by|from) {NAME}", rf"{NAME} sent", rf"^{NAME} wants his or her")
RECEIVER = (rf"to {NAME}", rf"(?:Send|Give|Forward) {NAME}", rf"^{NAME} (?:wants the|is waiting)")
"""How thirty phrasings name whose mail it is and who gets it; the first that fits decides."""


def forward_in_words(screen: Screen) -> Action | None:
    """email-inbox-forward-nl: the forwarding task in other words."""
    by, to = (next((found for pattern in patterns if (found := screen.match(pattern))), None) for patterns in (SENDER, RECEIVER))
    return _forward(screen, by[0], to[0]) if by and to else None


def _in_list(screen: Screen, sender: str, icon: str) -> Action | None:
    if back := screen.first("image", text="back"):
        return click(back)
    item = screen.first("item", text=sender)
    return click(screen.after(item, "image", text=icon)) if item else scroll_down(screen, *LIST_POINT)


def _open_mail(screen: Screen, sender: str, button: str) -> Action | None:
    """From the list, or from a wrong mail, to the sender's mail; then its button."""
    reply = screen.first("button", text=button)
    if reply is not None:
        return click(reply) if any(e.text == sender for e in screen.all("text")) else click(screen.first("image", text="back"))
    if button_below := screen.first("image", text="back"):
        # A long mail: its buttons are further down.
        return scroll_down(screen, *LIST_POINT) or click(button_below)
    item = screen.first("item", text=sender)
    return click(item) if item else scroll_down(screen, *LIST_POINT)


def _answer(screen: Screen, sender: str, text: str) -> Action | None:
    send = screen.first("image", text="send")
    if send is None:
        return _open_mail(screen, sender, "Reply")
    if screen.first("input") is not None or not any(e.text == sender for e in screen.all("text")):
        return click(screen.first("image", text="back"))
    return fill_all(screen, [(screen.first("textarea"), text)], send)


def _forward(screen: Screen, sender: str, to: str) -> Action | None:
    send = screen.first("image", text="send")
    if send is None:
        return _open_mail(screen, sender, "Forward")
    if screen.first("input") is None:
        return click(screen.first("image", text="back"))
    return fill_all(screen, [(screen.first("input"), to)], send)


def post_button(screen: Screen) -> Action | None:
    """social-media: one button of the user's post, perhaps in its "more" menu."""
    wanted = screen.match(r'For the user (\S+), click on the "(.+)" button')
    if not wanted:
        return None
    user, button = wanted
    entries = [e for e in screen.all("text", "item") if e.text in (button, f"{button} {user}")]
    if _is_menu_open_for(screen, user):
        return click(entries[-1]) if entries else scroll_down(screen, *LIST_POINT)
    name = screen.first("text", text=user)
    icon = _icon_of_post(screen, name, button.lower() if button in ("Reply", "Retweet", "Like") else "more") if name else None
    return click(icon) if icon else scroll_down(screen, *LIST_POINT)


MENU_ENTRIES = ("Share via DM", "Copy link to Tweet", "Embed Tweet", "Mute ", "Block ", "Report")


def _is_menu_open_for(screen: Screen, user: str) -> bool:
    """Two of a menu's entries name its user; while neither shows, an open menu is taken for the right one."""
    entries = [e.text for e in screen.all("text", "item") if e.text.startswith(MENU_ENTRIES)]
    named = [text.split("@")[1] for text in entries if "@" in text]
    return bool(entries) and all(name == user.removeprefix("@") for name in named)


def _icon_of_post(screen: Screen, name: Element, icon: str) -> Element | None:
    """The icon of the post that begins at `name`, unless it is scrolled away and the next post's would be taken."""
    found = screen.after(name, "image", text=icon)
    return found if found and found.y_px - name.y_px < 60 else None


def mark_posts(screen: Screen) -> Action | None:
    """social-media-all, social-media-some: mark the user's posts from the top down, then submit."""
    wanted = screen.match(r'Click the "(\w+)" button on (all|\d+) posts? by (\S+) and')
    if not wanted:
        return None
    icon, amount, user = wanted[0].lower(), wanted[1], wanted[2]
    marked = [e for e in screen.all("image") if "selected" in e.states]
    num_clicks = sum(isinstance(action, Click) for action in screen.history)
    is_enough = amount != "all" and max(num_clicks, len(marked)) >= int(amount)
    names = [e for e in screen.all("text") if e.text.startswith("@")]
    for name in names:
        for image in screen.all("image"):
            if 0 < image.y_px - name.y_px < 60 and "selected" in image.states and (name.text != user or image.text != icon):
                return click(image)
        target = _icon_of_post(screen, name, icon) if name.text == user else None
        if target is not None and "selected" not in target.states and not is_enough:
            return click(target)
    submit = screen.first("button", text="Submit")
    return click(submit) if submit else scroll_down(screen, *LIST_POINT)


def search_result(screen: Screen) -> Action | None:
    """search-engine: search, turn to the page that holds the n-th result (three a page), click it."""
    wanted = screen.match(r"click the (\d+\w\w) search result")
    field, pages = screen.first("input"), [e for e in screen.all("link") if e.text in ("1", "2", "3")]
    if not wanted or field is None:
        return None
    if field.text != screen.quote():
        return fill(screen, field, screen.quote())
    if not pages:
        return click(screen.first("button", text="Search"))
    page, index = divmod(ordinal(wanted[0]) - 1, 3)
    current = next((e for e in pages if "selected" in e.states), None)
    if current is None or current.text != str(page + 1):
        return click(next((e for e in pages if e.text == str(page + 1)), None))
    results = [e for e in screen.all("link") if e.y_px < current.y_px - 8]
    return click(results[index]) if index < len(results) else None


def contact(screen: Screen) -> Action | None:
    """phone-book: turn pages until the person shows, then click the property's value."""
    wanted = screen.match(r"Find (.+) in the contact book and click on their (\w+)")
    if not wanted:
        return None
    if screen.first("text", text=wanted[0]) is None:
        return click(screen.first("link", text=">"))
    label = screen.first("text", text=f"{wanted[1].capitalize()}:")
    return click(screen.after(label, "link")) if label else None


def folder(screen: Screen) -> Action | None:
    """navigate-tree: click the name, opening closed folders from the top until it shows."""
    target = screen.first("item", text=screen.quote())
    if target is not None:
        return click(target)
    return click(screen.first("button", text="expand"))


def order_food(screen: Screen) -> Action | None:
    """Order by name or by kind, going down the menu once; of a kind, all of the first that fits.

    Each row reads: name, pictures, minus, amount, plus. What was ordered further up is known only by the clicks so far.
    """
    names = screen.match(r"one of each item: (.+)")
    kind = screen.match(r"Order (\d+) items that are (\S+)")
    rows = _rows(screen)
    num_clicks = sum(isinstance(action, Click) for action in screen.history)
    num_open = int(kind[0]) if kind else 0
    if num_clicks >= num_open and not any(amount for _, _, _, amount, _ in rows):
        num_open = 0
    for name, pictures, minus, amount, plus in rows:
        if names:
            wanted = int(name in [n.strip() for n in names[0].split(",")])
        else:
            wanted = num_open if kind and kind[1] in pictures else 0
            num_open -= wanted
        if amount != wanted:
            return click(plus if amount < wanted else minus)
    button = screen.first("button", text="Order!")
    return click(button) if button else scroll_down(screen, *LIST_POINT)


ROW_BUTTON_PX = 20


def _rows(screen: Screen) -> list[tuple[str, set[str], Element, int, Element]]:
    """Rows that show as a whole: of one cut off by the list's edge, the amount may be out of sight."""
    rows = []
    for minus in (e for e in screen.all() if e.text == "-" and e.height_px >= ROW_BUTTON_PX):
        plus = screen.after(minus, text="+")
        name = screen.before(minus, "text")
        if plus is None or name is None:
            continue
        between = screen.elements[screen.elements.index(minus) + 1 : screen.elements.index(plus)]
        amount = next((int(e.text) for e in between if e.text.isdigit()), 0)
        ahead = screen.elements[screen.elements.index(name) + 1 : screen.elements.index(minus)]
        rows.append((name.text, {e.text for e in ahead if e.role == "image"}, minus, amount, plus))
    return rows
