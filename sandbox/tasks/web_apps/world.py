"""The data that each application is seeded with: rows by table, as they are compared and asked about. Made of words alone, so it is the
same on every machine and known without starting anything. How it gets into the application is inside/seed.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from functools import cache
from types import MappingProxyType
from typing import Any

from sandbox.tasks.web_apps import words
from sandbox.tasks.web_apps.words import combinations, number, pick

Row = Mapping[str, str | int]
World = Mapping[str, tuple[Row, ...]]
"""Rows by table."""

NUM_BOOKS, NUM_MEMBERS, NUM_LOANS = 320, 300, 260
NUM_PRODUCTS, NUM_SUPPLIERS, NUM_ORDERS = 240, 200, 240
NUM_TICKETS, NUM_PAGES = 240, 160
PRIORITIES = ("blocker", "critical", "major", "minor", "trivial")
TYPES = ("defect", "enhancement", "task")
COMPONENTS = ("backend", "billing", "editor", "importer", "search", "website")
SHELVES = tuple(f"{letter}{digit}" for letter in "ABCDEF" for digit in range(1, 5))


@cache
def library() -> World:
    """Of datasette."""
    authors = combinations("author", words.FIRST_NAMES, words.LAST_NAMES)[:30]
    books = [
        {
            "id": index + 1,
            "title": title,
            "author": pick(authors, "author", title),
            "year": number(1900, 2020, "year", title),
            "language": pick(words.LANGUAGES, "language", title),
            "shelf": pick(SHELVES, "shelf", title),
        }
        for index, title in enumerate(combinations("book", words.ADJECTIVES, words.NOUNS)[:NUM_BOOKS])
    ]
    members = [
        {"id": index + 1, "name": name, "city": pick(words.CITIES, "city", name), "level": pick(("basic", "plus", "gold"), "level", name)}
        for index, name in enumerate(combinations("member", words.FIRST_NAMES, words.LAST_NAMES)[30 : 30 + NUM_MEMBERS])
    ]
    lent = sorted(books, key=lambda book: pick(tuple("0123456789"), "lent", book["title"]) + str(book["title"]))[:NUM_LOANS]
    loans = [
        {
            "id": index + 1,
            "book_id": book["id"],
            "member_id": number(1, NUM_MEMBERS, "loan", book["title"]),
            "due": str(date(2026, 1, 1) + timedelta(days=number(0, 180, "due", book["title"]))),
        }
        for index, book in enumerate(lent)
    ]
    return _frozen({"books": books, "members": members, "loans": loans})


@cache
def shop() -> World:
    """Of sqlite-web."""
    products = [
        {
            "id": index + 1,
            "name": name,
            "colour": pick(words.COLOURS, "colour", name),
            "price": number(5, 400, "price", name),
            "stock": number(0, 90, "stock", name),
        }
        for index, name in enumerate(combinations("product", words.ADJECTIVES, words.NOUNS)[400 : 400 + NUM_PRODUCTS])
    ]
    suppliers = [
        {"id": index + 1, "name": name, "city": pick(words.CITIES, "supplier", name), "phone": str(number(200000, 899999, "phone", name))}
        for index, name in enumerate(combinations("supplier", words.FIRST_NAMES, words.LAST_NAMES)[400 : 400 + NUM_SUPPLIERS])
    ]
    orders = [
        {
            "id": index + 1,
            "code": code,
            "customer": pick(words.LAST_NAMES, "customer", code),
            "quantity": number(1, 30, "quantity", code),
            "state": pick(("open", "paid", "sent"), "state", code),
        }
        for index, code in enumerate(f"K{1000 + n * 7919 % 9000}" for n in range(NUM_ORDERS))
    ]
    return _frozen({"products": products, "suppliers": suppliers, "orders": orders})


@cache
def tracker() -> World:
    """Of Trac."""
    people = [name.lower() for name in words.FIRST_NAMES[:16]]
    tickets = [
        {
            "id": index + 1,
            "type": pick(TYPES, "type", summary),
            "summary": summary,
            "component": pick(COMPONENTS, "component", summary),
            "priority": pick(PRIORITIES, "priority", summary),
            "milestone": pick(MILESTONES, "milestone", summary),
            "owner": pick(people, "owner", summary),
            "status": "new",
            "resolution": "",
            "keywords": "",
            "cc": "",
            "description": "",
        }
        for index, summary in enumerate(combinations("ticket", words.ADJECTIVES, words.NOUNS)[800 : 800 + NUM_TICKETS])
    ]
    pages = [
        {"name": name.replace(" ", ""), "text": f"The keeper of this page is {pick(people, 'keeper', name)}."}
        for name in combinations("page", words.ADJECTIVES, words.NOUNS)[1200 : 1200 + NUM_PAGES]
    ]
    pages.append({"name": "WikiStart", "text": "[[TitleIndex]]"})
    milestones = [{"name": name, "description": ""} for name in MILESTONES]
    components = [{"name": name, "owner": "", "description": ""} for name in COMPONENTS]
    return _frozen({"ticket": tickets, "wiki": pages, "milestone": milestones, "component": components})


MILESTONES = tuple(f"{word} release" for word in ("First", "Second", "Third", "Spring", "Summer"))


def _frozen(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> World:
    return MappingProxyType({name: tuple(MappingProxyType(dict(row)) for row in rows) for name, rows in tables.items()})
