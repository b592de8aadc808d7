"""A small web application with a database, for tests of tasks by URL: notes that are added by a form and deleted by a script's request.

notes_app.py FOLDER PORT
"""

from __future__ import annotations

import html
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

PAGE = """<!doctype html><title>Notes</title><style>body {{ margin: 8px; font: 16px sans-serif }}</style>
<form method="post" action="/"><input name="text" id="text" autocomplete="off"> <button id="add">Add</button></form>
<p>{count} notes, all of them short.</p><ul>{items}</ul>
<script>
for (const button of document.querySelectorAll("li button"))
  button.onclick = async () => {{ await fetch("/notes/" + button.value, {{ method: "DELETE" }}); location.reload(); }};
</script>"""


class Notes:
    """The database, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notes.sqlite"
        self.run("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT)")

    def run(self, sql: str, *values: object) -> list[tuple[int, str]]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return list(connection.execute(sql, values))


def served(notes: Notes, port: int = 0) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/":
                return self._say(404, "There is nothing.")
            rows = notes.run("SELECT id, text FROM notes ORDER BY id")
            items = "".join(f'<li>{html.escape(text)} <button value="{key}">x</button></li>' for key, text in rows)
            self._say(200, PAGE.format(count=len(rows), items=items))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            notes.run("INSERT INTO notes (text) VALUES (?)", parse_qs(body).get("text", [""])[0])
            self.send_response(303)
            self.send_header("location", "/")
            self.send_header("content-length", "0")
            self.end_headers()

        def do_DELETE(self) -> None:
            notes.run("DELETE FROM notes WHERE id = ?", self.path.rpartition("/")[2])
            self._say(200, "gone")

        def _say(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


@contextmanager
def running(notes: Notes) -> Iterator[int]:
    """Its port."""
    with served(notes) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


if __name__ == "__main__":
    served(Notes(Path(sys.argv[1])), int(sys.argv[2])).serve_forever()
