"""A small web application for the tests of adopting: a shop with pages, a table, a search, a form that writes, a log-in, and traps.

python tests/sandbox/adopted_app.py PORT DATABASE
"""

from __future__ import annotations

import sqlite3
import sys
import time
from base64 import b64encode
from contextlib import closing
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

GOODS = {
    "Copper kettle": ("Kitchen", "34.50", "Arvid"),
    "Walnut chair": ("Living room", "129.00", "Berit"),
    "Linen towel": ("Bathroom", "12.80", "Cosima"),
    "Oak shelf": ("Office", "88.00", "Dario"),
}
VISITS = count(1)


def page(title: str, body: str) -> str:
    return f"""<!doctype html><title>{title}</title><h1>{title}</h1>
<nav><a href="/">Home</a> <a href="/goods">Goods</a> <a href="/about">About us</a> <a href="/add">Add goods</a>
<a href="/logout">Log out</a> <a href="https://elsewhere.example/">Elsewhere</a></nav>
<form action="/search"><input name="q" aria-label="Search the shop"></form>
{body}<img src="https://elsewhere.example/pixel.png">"""


def home() -> str:
    number = next(VISITS)
    return page(
        "Shop",
        f"""<p>You are visitor <a href="/visitor/{number}">number {number}</a>.</p>
<a href="/about">More</a> <a href="/goods">More</a>""",
    )


def goods() -> str:
    names = list(GOODS)
    rows = "".join(
        f'<tr><td><a href="/goods/{names.index(name)}">{name}</a></td><td>{room}</td><td>{price}</td></tr>'
        for name, (room, price, _) in GOODS.items()
    )
    return page("Goods", f"<table><tr><th>Name</th><th>Room</th><th>Price</th></tr>{rows}</table>")


def about() -> str:
    return page(
        "About us",
        """<details><summary>Opening hours</summary>From nine to five.</details>
<label>Currency <select><option>Crowns</option><option>Euros</option><option>Pounds</option></select></label>
<label><input type="checkbox"> Newsletter</label>
<dl><dt>Founded</dt><dd>1987</dd><dt>Owner</dt><dd>Edda Falk</dd></dl>""",
    )


def one(number: int) -> str:
    name = list(GOODS)[number]
    room, price, maker = GOODS[name]
    return page(name, f"<dl><dt>Maker of the {name.lower()}</dt><dd>{maker}</dd></dl><p>{room}, {price}</p>")


def add() -> str:
    return page(
        "Add goods",
        """<form method="post" action="/add"><label>Title <input name="title" required></label>
<label>Amount <input name="amount" type="number"></label><button>Save</button></form>""",
    )


DESK = """<!doctype html><title>Desk</title><div id="app">Loading</div><script src="/drop-down.js"></script>"""
"""A page that scripts draw, some time after what they load has come. Its menu and its dialog have no addresses."""
DRAW = """
const stock = () => `<h1>Stock</h1><table><thead><tr><td>Good</td><td>Left</td></tr></thead><tr><td colspan="2">Kitchen</td></tr>
  <tr><td>Tin whistle</td><td>41</td></tr><tr><td>Slate board</td><td>17</td></tr><tr><td>Felt hat</td><td>29</td></tr></table>`;
const desk = (orders) => `<h1>Orders</h1><button id="fold">Hide the menu</button>
  <button id="stock">Stock levels</button><button id="new">New order</button>
  <div role="button" id="help">Help</div><button id="clear">Empty the basket</button><button id="drop">Delete all</button>
  <table><tr><th>Keeper:</th><td>Gunnar Lind</td><th>Opened:</th><td>1991</td></tr></table>
  <form action="/search"><label>Find <input name="q"></label> <input type="submit" value="Find">
  <input type="hidden" name="action" value="go"></form>
  <div role="grid"><div role="row"><span role="columnheader">Customer</span> <span role="columnheader">Sum</span></div>` + orders.map(
  ([name, sum]) => `<div role="row"><span role="gridcell">${name}</span> <span role="gridcell">${sum}</span></div>`).join("") + `</div>
  <div role="dialog" aria-label="Write an order" hidden><label>Customer <input></label></div>
  <section hidden><h2>How to order</h2></section>`;
async function draw() {
  const orders = await (await fetch("/orders.json")).json();
  await new Promise((done) => setTimeout(done, 120));
  document.getElementById("app").innerHTML = location.pathname === "/desk/stock" ? stock() : desk(orders);
  const on = (id, then) => { const found = document.getElementById(id); if (found) found.onclick = then; };
  on("stock", () => { history.pushState(null, "", "/desk/stock"); draw(); });
  on("new", () => { document.querySelector("[role=dialog]").hidden = false; });
  on("fold", () => document.querySelectorAll("button, [role=button]").forEach((each) => { each.hidden = true; }));
  on("help", () => setTimeout(() => { document.querySelector("section").hidden = false; }, 300));
  on("clear", () => fetch("/add", {method: "POST", body: "title=cleared"}));
}
draw();
"""
SAVING = """<!doctype html><title>Notes</title><h1>Notes</h1><a href="/about">About us</a><a href="/goods">Goods</a>
<div id="over" style="position: fixed; inset: 0; background: white" hidden>Not saved <button>Go on</button></div>
<script>fetch("/add", {method: "POST", body: "title=draft"}).catch(() => { document.getElementById("over").hidden = false; });</script>"""
"""A page that writes by itself, and covers all it has where it cannot."""
ORDERS = '[["Ines Mahler", "12.10"], ["Jon Odell", "7.35"], ["Kaja Ravn", "30.00"]]'

LOGIN = """<!doctype html><title>Log in</title><form method="post" action="/login">
<label>User <input name="user"></label><label>Password <input type="password" name="password"></label><button>Enter</button></form>"""


class Handler(BaseHTTPRequestHandler):
    database: Path
    wants_login = False

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        fixed = {"/": home, "/goods": goods, "/about": about, "/add": add}
        if self.wants_login and "login" not in parts.path and "who=ann" not in self.headers.get("Cookie", ""):
            return self.answer(303, "", {"Location": "/login"})
        if parts.path == "/slow":
            time.sleep(1.5)
            return self.answer(200, page("Slow", ""))
        if parts.path.startswith("/http-login"):
            is_known = self.headers.get("Authorization", "") == "Basic " + b64encode(b"ann:secret").decode()
            if not is_known:
                return self.answer(401, "", {"WWW-Authenticate": 'Basic realm="Shop"'})
            return self.answer(200, page("Welcome", ""), {"Set-Cookie": "who=ann; Path=/"} if parts.path == "/http-login" else {})
        if self.answer_desk(parts.path):
            return None
        if parts.path == "/login":
            self.answer(200, LOGIN)
        elif parts.path == "/robots.txt":
            self.answer(200, "User-agent: *\nDisallow: /goods/3\n", {"Content-Type": "text/plain"})
        elif parts.path == "/away":
            self.answer(302, "", {"Location": f"http://127.0.0.1:{parts.query}/"})
        elif parts.path == "/search":
            asked = parse_qs(parts.query).get("q", [""])[0]
            hits = [name for name in GOODS if asked.casefold() in name.casefold()]
            self.answer(200, page("Results", f"<p>{len(hits)} for {escape(asked)}</p>"))
        elif parts.path.startswith("/goods/"):
            self.answer(200, one(int(parts.path.rpartition("/")[2])))
        elif parts.path in fixed:
            self.answer(200, fixed[parts.path]())
        else:
            self.answer(404, page("Not here", ""))

    def answer_desk(self, path: str) -> bool:
        """Whether it is one of the page that scripts draw."""
        kind, text = {
            "/desk": ("text/html; charset=utf-8", DESK),
            "/desk/stock": ("text/html; charset=utf-8", DESK),
            "/notes": ("text/html; charset=utf-8", SAVING),
            "/drop-down.js": ("text/javascript", DRAW),
            "/orders.json": ("application/json", ORDERS),
        }.get(path, ("", ""))
        if kind:
            self.answer(200, text, {"Content-Type": kind})
        return bool(kind)

    def do_POST(self) -> None:
        fields = {name: values[0] for name, values in parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()).items()}
        if self.path == "/login":
            is_known = fields.get("password") == "secret" and fields.get("user") == "ann"
            return self.answer(303, "", {"Location": "/", "Set-Cookie": "who=ann"}) if is_known else self.answer(200, LOGIN)
        with closing(sqlite3.connect(self.database)) as con, con:
            con.execute("insert into goods (title, amount) values (?, ?)", (fields["title"], fields.get("amount", "")))
        self.answer(303, "", {"Location": "/goods"})

    def answer(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": "text/html; charset=utf-8"} | (headers or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Quiet."""


def fresh(database: Path) -> None:
    with closing(sqlite3.connect(database)) as con, con:
        con.executescript("drop table if exists goods; create table goods (id integer primary key, title text, amount text)")


def serve(database: Path, port: int = 0, *, wants_login: bool = False) -> ThreadingHTTPServer:
    fresh(database)
    handler = type("Shop", (Handler,), {"database": database, "wants_login": wants_login})
    return ThreadingHTTPServer(("127.0.0.1", port), handler)


if __name__ == "__main__":
    serve(Path(sys.argv[2]), int(sys.argv[1])).serve_forever()
