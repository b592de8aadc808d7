"""What adopting an application leaves on the disk: the site, pages as they were seen, and tasks with their verifiers and recorded ways.
Frozen models, and their files in the folder of an adopted site. Nothing here opens a browser.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.tasks.task import Split
from warehouse.core.errors import ConfigError
from warehouse.core.home import atomic_write
from warehouse.core.identity import content_id

MAX_NAME = 46
MAX_STEPS = 45
FIRST_SCREEN_PX, SCROLL_PX = 600, 100
"""What shows without scrolling, and at least so much more with each scroll."""
DEEPEST_PX = 1_500
"""How far down a page a task's target may stand; further down an agent does little but scroll."""
AGENT_NAME = "flywheel-adopt"
"""What robots.txt may name."""
PASSWORD = "FLYWHEEL_ADOPT_PASSWORD"
"""Environment variable with the password of a log-in; no file has it."""


MONTHS = "jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?|september|oct(ober)?|nov(ember)?|dec(ember)?"
LEAVES = ("logout", "log-out", "log_out", "signout", "sign-out", "sign_out", "delete", "remove", "destroy", "shutdown", "drop-", "drop_")
"""Words of an address that ends a session or something else, even by GET."""


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


R = TypeVar("R", bound=BaseModel)


class Site(Record):
    """One application, and how it may be used."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,40}$", description="of its task source")]
    origin: Annotated[str, Field(pattern=r"^https?://[^/\s]+$", description="scheme, host and port: nothing else is ever asked")]
    start: Annotated[str, Field(pattern=r"^/", description="path of the first page")] = "/"
    allow_writes: Annotated[bool, Field(description="requests other than GET and HEAD are let through")] = False
    reset: Annotated[tuple[str, ...], Field(description="command that is run before each episode")] = ()
    reset_folder: Annotated[str | None, Field(description="where that command is run")] = None
    database: Annotated[str | None, Field(description="SQLite file that the application keeps its data in")] = None
    has_login: Annotated[bool, Field(description="login.json holds the cookies of a log-in")] = False
    login_path: Annotated[str | None, Field(pattern=r"^/", description="page with the log-in form")] = None
    user: Annotated[str, Field(description="name that is given there")] = ""
    delay_s: Annotated[float, Field(ge=0, description="least time between two pages of the crawl")] = 0.2
    obeys_robots: Annotated[bool, Field(description="addresses that robots.txt forbids are left out")] = True

    @property
    def host(self) -> str:
        return urlsplit(self.origin).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.origin)
        return parts.port or (443 if parts.scheme == "https" else 80)


class Locator(Record):
    """How a thing on a page is found again (look.js)."""

    tag: str
    name: str
    key: str = ""
    nth: int = 0


class Link(Record):
    at: Locator
    url: str
    top: int
    is_head: bool = False
    """Whether it stands in the head of a table's column."""
    opens: str = ""
    group: str = ""
    """Name of the row of a table, or of the part of the page, that it stands in."""
    is_in_row: bool = False


class PageField(Record):
    at: Locator
    type: str
    top: int
    state: str
    form: int = -1
    is_sent: Annotated[bool, Field(description="its form sends it; one without a name is for scripts alone")] = True
    is_required: bool = False
    is_multiple: bool = False
    options: tuple[str, ...] = ()
    values: Annotated[tuple[str, ...], Field(description="what a form sends for each option")] = ()
    max_length: Annotated[int, Field(description="characters that can be typed; 0 where there is no limit")] = 0


class Submit(Record):
    """A button that sends a form. `key` and `value` are what it adds to the fields."""

    at: Locator
    key: str = ""
    value: str = ""
    action: str = ""


class PageForm(Record):
    method: str
    action: str
    submit: Locator | None
    submits: tuple[Submit, ...] = ()
    hides_required: Annotated[bool, Field(description="a field that has to be filled in does not show")] = False


class Toggle(Record):
    at: Locator
    top: int
    state: str
    kind: Literal["expand", "tab", "tick"]


class View(Record):
    """A part of a page that a click may bring up: a dialog by its label or first heading, a menu, or a heading."""

    kind: Literal["dialog", "menu", "heading"]
    name: str


class Button(Record):
    """What a script answers: neither an address nor a form says what a click does."""

    at: Locator
    top: int


class Press(Record):
    """What a click on a button did in the crawl: it led to another page of the site, or brought up a view."""

    at: Locator
    top: int
    opens: str = ""
    """Address, where it led to another page."""
    shows: View | None = None
    is_refused: bool = False
    """Whether it sent something that would have written."""


class Presses(Record):
    """The buttons of one address that the crawl has tried."""

    url: str
    presses: tuple[Press, ...] = ()


class Cell(Record):
    text: str
    top: int
    at: Locator
    is_beside: bool = False


class PageTable(Record):
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    others: tuple[tuple[str, ...], ...] = ()
    """Texts of the rows that two visits did not see alike: they are not tasks, but their names are taken."""
    is_cut: bool = False
    """Whether the page has more rows than were read."""


class Fact(Record):
    label: str
    value: Cell


class Look(Record):
    """What can be done and read on a page."""

    url: str
    title: str
    heading: str
    links: tuple[Link, ...]
    fields: tuple[PageField, ...]
    forms: tuple[PageForm, ...]
    toggles: tuple[Toggle, ...]
    tables: tuple[PageTable, ...]
    facts: tuple[Fact, ...]
    buttons: tuple[Button, ...] = ()
    views: tuple[View, ...] = ()
    presses: tuple[Press, ...] = ()
    """What came of its buttons; the crawl finds it after both visits."""
    has_more_links: bool = False


class Visit(Record):
    """One address of the crawl. `key` is where it led to; `why_not` why it is not used."""

    url: str
    depth: int
    visit: int
    key: str = ""
    why_not: str = ""
    look: Look | None = None
    num_blocked: int = 0
    writes: Annotated[tuple[str, ...], Field(description="what the page sent by itself that would write, and was refused")] = ()

    @property
    def is_lasting(self) -> bool:
        """Whether it would be the same the next time: an application that is down, or has no time, is up again then."""
        passing = ("did not load", "answers with status 5", "answers with status 408", "answers with status 429")
        return not self.why_not.startswith(passing)


class UrlCheck(Record):
    """The page that is shown."""

    kind: Literal["url"] = "url"
    key: str


class AnswerCheck(Record):
    """What the agent answers, white space and case aside."""

    kind: Literal["answer"] = "answer"
    text: str


class StateCheck(Record):
    """What a field or a toggle on the page that is shown holds. `page` is the key of that page; any where it is empty."""

    kind: Literal["state"] = "state"
    at: Locator
    state: str
    page: str = ""


class ShownCheck(Record):
    """A view that shows on the page. `page` is as in StateCheck."""

    kind: Literal["shown"] = "shown"
    view: View
    page: str = ""


class RequestCheck(Record):
    """A request that the page sent, with these fields among others, and that was not answered by an error."""

    kind: Literal["request"] = "request"
    method: str
    path: str
    fields: dict[str, str]


class RowCheck(Record):
    """A row with these values, which was not there when the episode began."""

    kind: Literal["row"] = "row"
    table: str
    cells: dict[str, str]


Check = Annotated[UrlCheck | AnswerCheck | StateCheck | ShownCheck | RequestCheck | RowCheck, Field(discriminator="kind")]


class Step(Record):
    """One thing of the recorded way, on the page `key`: click it, give it a value (and press enter), or read it."""

    do: Literal["click", "type", "choose", "set", "read"]
    key: str
    at: Locator
    value: str = ""
    enter: bool = False
    top: Annotated[int, Field(description="of the thing on its page, in pixels, as the crawl saw it")] = 0


class AdoptedTask(Record):
    """A task: what is asked, where it starts, how it is verified, and the recorded way, which is its oracle."""

    family: str
    instruction: str
    start: str
    checks: tuple[Check, ...]
    steps: tuple[Step, ...]
    answer: str = ""

    @property
    def task_id(self) -> str:
        return content_id("adopted", [self.instruction, self.start, self.goal])

    @property
    def goal(self) -> list[Any]:
        """What decides whether it is solved, wherever the task starts. Tasks of one goal are never in two splits."""
        return [check.model_dump(mode="json", exclude={"page"}) for check in self.checks]

    @property
    def max_steps(self) -> int:
        num_scrolls = max((max(0, step.top - FIRST_SCREEN_PX) // SCROLL_PX for step in self.steps), default=0)
        return min(MAX_STEPS, 6 + 3 * len(self.steps) + sum(step.do == "type" for step in self.steps) + num_scrolls)


class Proof(Record):
    """How a task's plays went. `why_not` is empty where it is a task that is sound."""

    task_id: str
    why_not: str = ""
    num_steps: int = 0
    actions: tuple[str, ...] = ()
    """Of the oracle, as JSON."""
    row: RowCheck | None = None
    """What the oracle left in the database, where one is known."""


class Wording(Record):
    """Other instructions for a task, by a language model. `start` and `instruction` are those of the task."""

    start: str
    instruction: str
    others: tuple[str, ...]


class KeptTask(Record):
    split: Split
    task: AdoptedTask


class TaskSet(Record):
    """tasks.json of an adopted site."""

    site: Site
    tasks: tuple[KeptTask, ...]


def parts_of(url: str) -> SplitResult | None:
    """None for an address that cannot be parsed: pages and models write such ones."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts


def page_key(url: str) -> str:
    """Path and query of an address, which stand for a page: parameters in order, a fragment only where it is a route of the page's
    scripts. Empty for an address that cannot be parsed."""
    if (parts := parts_of(url)) is None:
        return ""
    query = urlencode(sorted(parse_qsl(parts.query, keep_blank_values=True)))
    route = f"#{parts.fragment}" if parts.fragment.startswith(("/", "!")) else ""
    return f"{parts.path or '/'}{'?' + query if query else ''}{route}"


def path_of(url: str) -> str:
    return page_key(url).partition("?")[0].partition("#")[0]


def origin_of(url: str) -> str:
    """Scheme, host and port, with the port left out where it is the scheme's own. Empty for an address that cannot be parsed."""
    if (parts := parts_of(url)) is None:
        return ""
    default = {"http": 80, "https": 443}.get(parts.scheme)
    port = "" if parts.port in (None, default) else f":{parts.port}"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return f"{parts.scheme}://{host}{port}"


def is_leaving(url: str) -> bool:
    """Whether following an address may end a session or destroy something."""
    if (parts := parts_of(url)) is None:
        return True
    text = f"{parts.path}?{parts.query}".lower()
    return any(word in text for word in LEAVES)


def says_leaving(name: str) -> bool:
    """Whether a button or link of this name may end a session or destroy something."""
    return any(word in "-".join(name.lower().split()) for word in LEAVES)


def is_of_date(text: str) -> bool:
    """Whether it holds a date."""
    shapes = (
        rf"\b({MONTHS})\.? \d",
        rf"\b\d{{1,2}}\.? ({MONTHS})\b",
        r"\b\d{4}-\d\d-\d\d\b",
        r"\b\d{1,2}/\d{1,2}/\d{2,4}\b",
        r"\b\d{1,2}\.\d{1,2}\.\d{4}\b",
    )
    return any(re.search(shape, text, re.IGNORECASE) for shape in shapes)


def is_sayable(name: str) -> bool:
    """Whether an instruction can name it: a line with letters or digits, and without quotes."""
    return 1 <= len(name) <= MAX_NAME and re.search(r"\w", name) is not None and not set(name) & set('"“”\\\n') and not goes_by(name)


def goes_by(text: str) -> bool:
    """Whether it says how long ago something was, which two visits a moment apart see alike."""
    return (
        re.search(r"\b(second|minute|hour|day|week|month|year)s? ago\b|\bjust now\b|\b(yesterday|today)\b", text, re.IGNORECASE) is not None
    )


def names_of(look: Look) -> Counter[str]:
    """How many things of a page that can be clicked have a name."""
    at = {link.at for link in look.links} | {toggle.at for toggle in look.toggles} | {button.at for button in look.buttons}
    return Counter(each.name.casefold() for each in at)


class Folder:
    """Where an adopted site lies. Lists grow line by line, so that what was cut off goes on."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        return self.root / name

    @property
    def login(self) -> Path:
        return self.root / "login.json"

    def write(self, name: str, value: BaseModel) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        atomic_write(self.root / name, (value.model_dump_json(indent=1) + "\n").encode())

    def read(self, name: str, kind: type[R]) -> R:
        """Raises ConfigError where it is missing or malformed."""
        path = self.root / name
        try:
            return kind.model_validate_json(path.read_bytes())
        except FileNotFoundError as error:
            raise ConfigError(f"There is no {path}: run `flywheel adopt URL --output {self.root}` without --only first.") from error
        except ValidationError as error:
            raise ConfigError(f"{path} is not usable: {error.errors()[0]['msg']}. Delete it and run `flywheel adopt` again.") from error

    def lines(self, name: str, kind: type[R]) -> Iterator[R]:
        """What a list holds; a last line that was cut off is left out."""
        path = self.root / name
        if not path.exists():
            return
        for line in path.read_bytes().split(b"\n"):
            try:
                if line:
                    yield kind.model_validate_json(line)
            except ValidationError:
                continue

    def add(self, name: str, *values: BaseModel) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / name).open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a line that was cut off
                    file.write(b"\n")
            file.write(b"".join(value.model_dump_json().encode() + b"\n" for value in values))

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self.root / name).unlink(missing_ok=True)
