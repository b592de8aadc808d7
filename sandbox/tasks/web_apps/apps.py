"""The applications: what is installed, how each is seeded and started, and which part of its database is its state. One literal table.

What they can do is not said here: it is found by crawling them (crawl.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from sandbox.tasks.web_apps import world
from sandbox.tasks.web_apps.world import World
from warehouse.core.errors import ConfigError
from warehouse.core.identity import content_id

PORT = 8001
ORIGIN = f"http://localhost:{PORT}"
CLOCK_VERSION = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTable:
    """One table of an application's state. The first column of the query is the key; `singular` is what a person calls a row, `title` the
    column that people know a row by. What is asked and changed is `asked`; all of it is compared."""

    query: str
    singular: str
    title: str
    asked: tuple[str, ...] = ()
    refers: Mapping[str, str] = field(default_factory=dict)
    """Columns that hold the key of another table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebApp:
    """One application. Paths are below http://localhost:PORT."""

    name: str
    title: str
    """What instructions call it."""
    pins: tuple[str, ...]
    """Its package first, then everything that it needs."""
    serve: tuple[str, ...]
    """Module and arguments; run in the jail's /workspace."""
    seed: str
    """Which function of inside/seed.py seeds it."""
    database: str
    """Path of its SQLite file in the workspace."""
    world: Callable[[], World]
    given: Callable[[], dict[str, object]]
    """What world.json holds besides the rows."""
    tables: Mapping[str, StateTable]
    ready: str
    """A path that answers 200 once it is up."""
    start: str = "/"

    @property
    def version(self) -> str:
        return self.pins[0].partition("==")[2]

    def seed_json(self) -> str:
        rows = {name: [dict(row) for row in rows] for name, rows in self.world().items()}
        return json.dumps({**self.given(), "tables": rows}, sort_keys=False)

    @property
    def world_id(self) -> str:
        """Of what an episode begins with: pins and data."""
        return _world_id(self.name)


_SCHEMA = "SELECT name, coalesce(sql, '') AS sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
_LIBRARY_SCHEMA = (
    "CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT, author TEXT, year INTEGER, language TEXT, shelf TEXT)",
    "CREATE TABLE members (id INTEGER PRIMARY KEY, name TEXT, city TEXT, level TEXT)",
    "CREATE TABLE loans (id INTEGER PRIMARY KEY, book_id INTEGER REFERENCES books(id), member_id INTEGER REFERENCES members(id), due TEXT)",
)
_SHOP_SCHEMA = (
    "CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL, colour TEXT NOT NULL, price INTEGER NOT NULL, "
    "stock INTEGER NOT NULL)",
    "CREATE TABLE suppliers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL, phone TEXT NOT NULL)",
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, code TEXT NOT NULL, customer TEXT NOT NULL, quantity INTEGER NOT NULL, "
    "state TEXT NOT NULL)",
)
_LIBRARY_METADATA = {
    "title": "Library",
    "databases": {
        "library": {
            "tables": {"books": {"label_column": "title"}, "members": {"label_column": "name"}},
            "queries": {
                "add_member": {
                    "title": "Add a member",
                    "write": True,
                    "sql": "insert into members (name, city, level) values (:name, :city, :level)",
                    "on_success_message": "The member was added",
                },
                "add_book": {
                    "title": "Add a book",
                    "write": True,
                    "sql": "insert into books (title, author, year, language, shelf) values (:title, :author, :year, :language, :shelf)",
                    "on_success_message": "The book was added",
                },
                "move_book": {
                    "title": "Move a book",
                    "write": True,
                    "sql": "update books set shelf = :shelf where title = :title",
                    "on_success_message": "The book was moved",
                },
                "change_level": {
                    "title": "Change a level",
                    "write": True,
                    "sql": "update members set level = :level where name = :name",
                    "on_success_message": "The level was changed",
                },
                "remove_member": {
                    "title": "Remove a member",
                    "write": True,
                    "sql": "delete from members where name = :name",
                    "on_success_message": "The member was removed",
                },
            },
        }
    },
}

DATASETTE = WebApp(
    name="datasette",
    title="library",
    pins=(
        "datasette==0.65.5",
        "aiofiles==25.1.0",
        "anyio==4.16.0",
        "asgi-csrf==0.11",
        "asgiref==3.13.0",
        "certifi==2026.10.18",
        "click==8.5.1",
        "click-default-group==1.2.4",
        "flexcache==0.3",
        "flexparser==0.4",
        "h11==0.16.0",
        "httpcore==1.0.9",
        "httpx==0.28.1",
        "hupper==1.12.1",
        "idna==3.20",
        "itsdangerous==2.2.0",
        "janus==2.0.0",
        "jinja2==3.1.6",
        "markupsafe==3.0.4",
        "mergedeep==1.3.4",
        "platformdirs==4.14.7",
        "pluggy==1.7.0",
        "python-multipart==0.0.34",
        "pyyaml==6.0.3",
        "setuptools==80.9.0",
        "typing-extensions==4.16.0",
        "uvicorn==0.54.0",
    ),
    serve=(
        "datasette",
        "serve",
        "data/library.db",
        "--metadata",
        "data/metadata.json",
        "-h",
        "127.0.0.1",
        "-p",
        str(PORT),
        "--setting",
        "default_page_size",
        "20",
        "--setting",
        "suggest_facets",
        "off",
        "--setting",
        "default_allow_sql",
        "off",
        "--setting",
        "num_sql_threads",
        "1",
        "--setting",
        "allow_download",
        "off",
        "--setting",
        "sql_time_limit_ms",
        "20000",
        "--setting",
        "facet_time_limit_ms",
        "20000",
        "--secret",
        "library",
    ),
    seed="tables",
    database="data/library.db",
    world=world.library,
    given=lambda: {"database": "library", "schema": _LIBRARY_SCHEMA, "files": {"metadata.json": json.dumps(_LIBRARY_METADATA)}},
    tables={
        "books": StateTable(
            query="SELECT id, title, author, year, language, shelf FROM books",
            singular="book",
            title="title",
            asked=("author", "year", "language", "shelf"),
        ),
        "members": StateTable(query="SELECT id, name, city, level FROM members", singular="member", title="name", asked=("city", "level")),
        "loans": StateTable(
            query="SELECT id, book_id, member_id, due FROM loans",
            singular="loan",
            title="id",
            asked=("due",),
            refers={"book_id": "books", "member_id": "members"},
        ),
        "schema": StateTable(query=_SCHEMA, singular="schema", title="name"),
    },
    ready="/-/versions.json",
)

SQLITE_WEB = WebApp(
    name="sqlite-web",
    title="shop",
    pins=(
        "sqlite-web==0.8.2",
        "blinker==1.9.0",
        "click==8.5.1",
        "flask==3.1.3",
        "itsdangerous==2.2.0",
        "jinja2==3.1.6",
        "markupsafe==3.0.4",
        "peewee==4.5.3",
        "pygments==2.21.0",
        "werkzeug==3.1.9",
    ),
    serve=("sqlite_web.sqlite_web", "-p", str(PORT), "-H", "127.0.0.1", "-x", "-q", "-R", "20", "data/shop.db"),
    seed="tables",
    database="data/shop.db",
    world=world.shop,
    given=lambda: {"database": "shop", "schema": _SHOP_SCHEMA},
    tables={
        "products": StateTable(
            query="SELECT id, name, colour, price, stock FROM products",
            singular="product",
            title="name",
            asked=("colour", "price", "stock"),
        ),
        "suppliers": StateTable(
            query="SELECT id, name, city, phone FROM suppliers", singular="supplier", title="name", asked=("city", "phone")
        ),
        "orders": StateTable(
            query="SELECT id, code, customer, quantity, state FROM orders",
            singular="order",
            title="code",
            asked=("customer", "quantity", "state"),
        ),
        "schema": StateTable(query=_SCHEMA, singular="schema", title="name"),
    },
    ready="/",
)

_TRAC_SETTINGS = {
    "trac": {
        "mainnav": "wiki, tickets, roadmap, newticket, search",
        "metanav": "",
        "default_handler": "WikiModule",
        "check_auth_ip": "false",
        "default_charset": "utf-8",
    },
    "report": {"items_per_page": "20"},
    "project": {"name": "Tracker", "descr": "", "footer": ""},
    "components": {
        f"trac.{part}": "disabled"
        for part in ("timeline.*", "versioncontrol.*", "about.*", "prefs.*", "admin.web_ui.*", "ticket.batch.*", "ticket.query.querymodule")
    },
    "ticket": {"default_component": "", "default_milestone": "", "default_owner": "", "default_priority": "minor", "default_type": "task"},
}
_TRAC_REPORT = "SELECT id AS ticket, summary, component, priority, milestone, owner FROM ticket WHERE status <> ''closed'' ORDER BY id"
TRAC = WebApp(
    name="trac",
    title="tracker",
    pins=("Trac==1.6", "jinja2==3.1.6", "markupsafe==3.0.4", "setuptools==75.8.0"),
    serve=("trac.web.standalone", "--port", str(PORT), "--hostname", "127.0.0.1", "--single-env", "data"),
    seed="tracker",
    database="data/db/trac.db",
    world=world.tracker,
    given=lambda: {
        "name": "Tracker",
        "settings": _TRAC_SETTINGS,
        "statements": (
            "DELETE FROM wiki",
            "DELETE FROM milestone",
            "DELETE FROM component",
            "DELETE FROM version",
            "DELETE FROM report",
            "DELETE FROM permission WHERE username = 'anonymous'",
            "DELETE FROM enum WHERE type = 'severity'",
            f"INSERT INTO report (id, author, title, query, description) VALUES (1, 'anonymous', 'Open tickets', '{_TRAC_REPORT}', '')",
            *(
                f"INSERT INTO permission VALUES ('anonymous', '{permission}')"
                for permission in ("TICKET_ADMIN", "WIKI_ADMIN", "MILESTONE_ADMIN", "ROADMAP_ADMIN", "REPORT_VIEW", "SEARCH_VIEW")
            ),
        ),
    },
    tables={
        "ticket": StateTable(
            query="SELECT id, type, summary, component, priority, milestone, owner, status, resolution, keywords, cc, description, "
            "reporter, version, severity FROM ticket",
            singular="ticket",
            title="summary",
            asked=("type", "component", "priority", "milestone", "owner"),
        ),
        "comment": StateTable(
            query="SELECT ticket || '.' || oldvalue, ticket, newvalue AS text FROM ticket_change "
            "WHERE field = 'comment' AND newvalue <> ''",
            singular="comment",
            title="text",
        ),
        "wiki": StateTable(
            query="SELECT name, name AS title, text FROM wiki AS page "
            "WHERE version = (SELECT max(version) FROM wiki WHERE name = page.name)",
            singular="page",
            title="title",
        ),
        "milestone": StateTable(
            query="SELECT name, name AS title, description, completed > 0 AS completed, due > 0 AS due FROM milestone",
            singular="milestone",
            title="title",
        ),
        "component": StateTable(query="SELECT name, name AS title, owner, description FROM component", singular="component", title="title"),
        "report": StateTable(query="SELECT id, title, query, description FROM report", singular="report", title="title"),
        "attachment": StateTable(query="SELECT type || id || filename, filename FROM attachment", singular="attachment", title="filename"),
        "permission": StateTable(query="SELECT username || ' ' || action FROM permission", singular="permission", title="action"),
    },
    ready="/wiki",
    start="/wiki",
)


@cache
def _world_id(name: str) -> str:
    app = APPS[name]
    return content_id("world", [app.name, app.seed_json(), app.pins])


APPS: Mapping[str, WebApp] = {app.name: app for app in (DATASETTE, SQLITE_WEB, TRAC)}


def app_named(name: str) -> WebApp:
    """Raises ConfigError."""
    if name not in APPS:
        raise ConfigError(f"There is no web application {name!r}; there are {', '.join(APPS)}.")
    return APPS[name]
