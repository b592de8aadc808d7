"""A small web application for the tests of adopting, like those that offices use: a log-in form, sessions that the server keeps in its
database, tokens against forgery in its forms, a list that is sorted and filtered, and forms with several buttons.
"""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

SEED = """
drop table if exists sessions; drop table if exists items;
create table sessions (sid text);
create table items (id integer primary key, code text, title text, room text, due text);
insert into items (code, title, room, due) values
  ('A101', 'Copper kettle', 'Hall', '2026-03-04'), ('A102', 'Walnut chair', 'Attic', '2026-05-06'),
  ('A103', 'Oak shelf', 'Hall', '2026-07-08');
"""
ROOMS = {"1": "Hall", "2": "Attic", "3": "Cellar"}


def page(title: str, body: str) -> str:
    return f"""<!doctype html><title>{title}</title><nav><table>
<tr><th scope="row"><a href="/items">Items</a></th><td><a href="/items/add">Add</a></td></tr>
<tr><th scope="row"><a href="/rooms">Rooms</a></th><td><a href="/rooms/add">Add</a></td></tr></table></nav><h1>{title}</h1>{body}"""


def listing(rows: list[tuple[Any, ...]], query: str) -> str:
    head = "".join(f'<th><a href="/items?sort={name.lower()}">{name}</a></th>' for name in ("Code", "Title"))
    body = "".join(
        f'<tr><td><a href="/items/{number}">{code}</a></td><td>{title}</td><td>{room}</td><td>{due}</td></tr>'
        for number, code, title, room, due in rows
    )
    filters = "".join(
        f'<details open><summary>By {name}</summary><a href="/items?{name}=1">Yes</a> <a href="/items?{name}=0">No</a></details>'
        for name in ("lent", "broken")
    )
    return f"""<form action="/items"><input name="q"><button>Search</button></form>
<div style="width: 300px; overflow-x: auto"><table style="width: 700px; table-layout: fixed">
<tr>{head}<th>Room</th><th>Due</th></tr>{body}</table></div>
{filters}<p>Shown by {query or "number"}</p>"""


def editing(token: str, code: str = "", due: str = "") -> str:
    options = "".join(f'<option value="{value}">{name}</option>' for value, name in ROOMS.items())
    return f"""<form method="post"><input type="hidden" name="token" value="{token}">
<label>Code <input name="code" maxlength="6" value="{code}" required></label><label>Due <input name="due" value="{due}"></label>
<label>Room <select name="room" required><option value="">Choose</option>{options}</select></label>
<input type="submit" name="_save" value="Save"><input type="submit" name="_more" value="Save and add another">
<button name="_delete">Delete</button></form>"""


class Office(BaseHTTPRequestHandler):
    database: Path
    num_log_ins = 0

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        token = self.cookie("token") or secrets.token_hex(8)
        if parts.path == "/login":
            form = f"""<form method="post"><input type="hidden" name="token" value="{token}">
<label>Name <input name="name"></label><label>Password <input type="password" name="password"></label><button>Enter</button></form>"""
            return self.answer(200, page("Log in", form), {"Set-Cookie": f"token={token}; Path=/"})
        if not self.is_known():
            return self.answer(303, "", {"Location": f"/login?next={parts.path}"})
        with closing(sqlite3.connect(self.database)) as con:
            if parts.path == "/items":
                order = parse_qs(parts.query).get("sort", ["id"])[0]
                rows = con.execute(
                    f"select id, code, title, room, due from items order by {'title' if order == 'title' else 'id'}"
                ).fetchall()
                return self.answer(200, page("Items to change", listing(rows, order)))
            if parts.path == "/items/add":
                return self.answer(200, page("Add an item", editing(token)))
            if parts.path.startswith("/items/"):
                found = con.execute("select code, due from items where id = ?", [parts.path[len("/items/") :]]).fetchone()
                return self.answer(200, page("Change an item", editing(token, *found)))
        return self.answer(200, page("Office", ""))

    def do_POST(self) -> None:
        fields = {name: values[0] for name, values in parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()).items()}
        if not fields.get("token") or fields["token"] != self.cookie("token"):
            return self.answer(403, "forged")
        with closing(sqlite3.connect(self.database)) as con, con:
            if self.path.startswith("/login"):
                if (fields.get("name"), fields.get("password")) != ("ann", "secret"):
                    return self.answer(303, "", {"Location": "/login"})
                sid = secrets.token_hex(8)
                con.execute("insert into sessions values (?)", [sid])
                type(self).num_log_ins += 1
                return self.answer(303, "", {"Location": "/", "Set-Cookie": f"sid={sid}; Path=/"})
            if not self.is_known():
                return self.answer(403, "not logged in")
            con.execute("insert into items (code, title, due) values (?, '', ?)", [fields["code"], fields.get("due", "")])
        return self.answer(303, "", {"Location": "/items/add" if "_more" in fields else "/items"})

    def cookie(self, name: str) -> str:
        pairs = (each.strip().partition("=") for each in self.headers.get("Cookie", "").split(";"))
        return next((value for key, _, value in pairs if key == name), "")

    def is_known(self) -> bool:
        with closing(sqlite3.connect(self.database)) as con:
            return con.execute("select 1 from sessions where sid = ?", [self.cookie("sid")]).fetchone() is not None

    def answer(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": "text/html; charset=utf-8"} | (headers or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Quiet."""


def serve(database: Path) -> tuple[ThreadingHTTPServer, type[Office]]:
    with closing(sqlite3.connect(database)) as con, con:
        con.executescript(SEED)
    handler = type("OfficeOfATest", (Office,), {"database": database, "num_log_ins": 0})
    return ThreadingHTTPServer(("127.0.0.1", 0), handler), handler
