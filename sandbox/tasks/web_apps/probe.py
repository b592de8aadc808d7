"""Finding out what a form does: it is sent with values that nothing else has, and the difference of the application's state shows which
column each field sets. What was learned is predicted for another row and compared; a form that then does something else is dropped.

Each form is tried in an application of its own with fresh data.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from sandbox.tasks.web_apps.apps import WebApp
from sandbox.tasks.web_apps.functions import KEY, FieldUse, Function, path_of
from sandbox.tasks.web_apps.html import Control, Form, read_page
from sandbox.tasks.web_apps.running import RunningApp
from sandbox.tasks.web_apps.state import Change, State, difference, unmet

FIRST_PROBE = 70_001
_FILLED = {"text", "area"}


class Dropped(Exception):
    """A form that no task is made of; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A form on a kind of page: `pattern` with up to two rows' keys that it is there for, the button, and the names of the
    form's controls, by which it is known again."""

    pattern: str
    entity: str | None
    keys: tuple[str | None, ...]
    names: frozenset[str]
    submit: Control


class Prober:
    """Tries one form. `running` is a fresh application; every try begins at the state as the last left it."""

    def __init__(self, app: WebApp, running: RunningApp, target: Target) -> None:
        self.app, self.running, self.target = app, running, target

    async def renew(self) -> None:
        """Fresh data again."""
        await self.running.close()
        self.running = await RunningApp.start(self.app)

    async def form(self, key: str | None) -> tuple[str, Form]:
        path = path_of(self.target.pattern, key)
        answer = await self.running.get(path)
        forms = [form for form in read_page(answer.text).forms if form.method == "post" and self._has_button(form)]
        if answer.status != 200 or not forms:
            raise Dropped("the form is not there again")
        return path, max(forms, key=lambda form: len(self.target.names & {control.name for control in form.controls}))

    def _has_button(self, form: Form) -> bool:
        wanted = (self.target.submit.name, self.target.submit.label)
        return any((submit.name, submit.label) == wanted for submit in form.submits())

    async def send(self, key: str | None, values: Mapping[str, str]) -> list[Change]:
        """What changes when the form is sent with these values instead of its own."""
        path, form = await self.form(key)
        before = await self.running.state()
        given = form.defaults() | dict(values)
        submit = self.target.submit
        if submit.name:
            given[submit.name] = submit.value or ""
        action = urlsplit(urljoin(f"http://localhost{path}", form.action))
        await self.running.post(action.path + (f"?{action.query}" if action.query else ""), given)
        return difference(before, await self.running.state())

    def fill(self, form: Form, first: int) -> dict[str, str]:
        """A value of its own for each text field; numbers are taken where words are, and where they are not."""
        names = [control.name for control in form.controls if control.kind in _FILLED and control.name and not control.is_locked]
        return {name: str(first + index) for index, name in enumerate(names)}


@asynccontextmanager
async def prober(app: WebApp, target: Target) -> AsyncIterator[Prober]:
    probe = Prober(app, await RunningApp.start(app), target)
    try:
        yield probe
    finally:
        await probe.running.close()


async def functions_of(app: WebApp, target: Target) -> list[Function]:
    """What a form can do. Raises Dropped."""
    async with prober(app, target) as probe:
        _, form = await probe.form(target.keys[0])
        if any(control.kind in {"password", "file"} for control in form.controls):
            raise Dropped("needs a password or a file")
        found = [function for function in await _learn(probe, form) if function is not None]
    if not found:
        raise Dropped("changes nothing")
    kept = []
    for function in found:
        async with prober(app, target) as probe:
            if await _is_confirmed(probe, function):
                kept.append(function)
    if not kept:
        raise Dropped("does something else on another row")
    return kept


async def _learn(probe: Prober, form: Form) -> list[Function]:
    """Several tries, from the plainest on: field by field where the page is about a row; all fields filled; with boxes ticked; with a field
    that names a row."""
    key = probe.target.keys[0]
    boxes = {control.name: control.options[0][0] for control in form.controls if control.kind == "check" and control.name}
    if key is not None and (found := await _updates(probe, form, boxes)):
        return found
    filled = probe.fill(form, FIRST_PROBE)
    for checks in [{}, boxes] if boxes else [{}]:
        changes = await probe.send(key, filled | checks)
        if changes:
            only = _only(changes)
            if only.op == "insert":
                return [await _insert(probe, form, filled, only)]
            if only.op == "delete":
                return [_named(probe, op="delete", table=only.table)]
            raise Dropped("changes a row that nothing names")
    return await _by_title(probe, form, filled)


def _only(changes: list[Change]) -> Change:
    if len(changes) != 1:
        raise Dropped("changes several rows")
    if changes[0].table == "schema":
        raise Dropped("changes the schema")
    return changes[0]


def _named(probe: Prober, *, op: str, table: str, suffix: str = "", **parts: object) -> Function:
    name = "-".join(part for part in (op, table, suffix) if part)
    return Function.model_validate(
        {
            "name": name,
            "page": probe.target.pattern,
            "entity": probe.target.entity,
            "submit": probe.target.submit.label,
            "op": op,
            "table": table,
            **parts,
        }
    )


def _use(control: Control, column: str | None, check: str | None = None) -> FieldUse:
    options = tuple(text for _, text in control.options) if control.kind == "select" else ()
    return FieldUse.model_validate(
        {"name": control.name, "kind": control.kind, "label": control.label, "column": column, "options": options, "check": check}
    )


async def _insert(probe: Prober, form: Form, filled: Mapping[str, str], change: Change) -> Function:
    """Fields by the columns that hold their values; then, with the title alone, what the others hold where they are left as they are, and
    what each select sets."""
    by_value = {value: name for name, value in filled.items()}
    controls = {control.name: control for control in form.controls}
    columns = {column: by_value[str(value)] for column, value in change.cells.items() if value in by_value}
    if not columns:
        raise Dropped("takes nothing from its fields")
    key, title = probe.target.keys[0], probe.app.tables[change.table].title
    blank: dict[str, str | None] = {}
    if title in columns:
        alone = {columns[title]: str(FIRST_PROBE + 3000)}
        changes = await probe.send(key, alone)
        if len(changes) == 1 and changes[0].op == "insert":
            blank = {column: value for column, value in changes[0].cells.items() if column != title}
            for number, control in enumerate(form.controls, start=FIRST_PROBE + 3001):
                value = _other(control, number) if control.kind == "select" else None
                if value is None:
                    continue
                changes = await probe.send(key, {columns[title]: str(number), control.name: value})
                if len(changes) == 1 and changes[0].op == "insert":
                    set_by_it = [column for column, cell in changes[0].cells.items() if cell == value and blank.get(column) != value]
                    columns |= dict.fromkeys(set_by_it, control.name)
    fields = [_use(controls[name], column) for column, name in columns.items()]
    constants = {
        column: KEY if key is not None and value == key else value for column, value in change.cells.items() if column not in columns
    }
    kept = {column: value for column, value in blank.items() if column in columns}
    return _named(probe, op="insert", table=change.table, fields=fields, constants=constants, blank=kept)


async def _updates(probe: Prober, form: Form, checks: Mapping[str, str]) -> list[Function]:
    """Every field by itself; then every radio button, with the fields that do nothing without it."""
    key, table, start = probe.target.keys[0], "", FIRST_PROBE + 1000
    uses: list[FieldUse] = []
    idle: list[Control] = []
    for control in form.controls:
        if control.kind not in {"text", "area", "select"} or not control.name:
            continue
        use = None
        boxes = [name for name in checks if control.name in name]
        for check in boxes if control.is_locked else (None, *boxes):
            start += 1
            value = _other(control, start)
            if value is None:
                break
            changes = await probe.send(key, {control.name: value} | ({check: checks[check]} if check else {}))
            if len(changes) == 1 and changes[0].op == "update" and list(changes[0].cells.values()) == [value]:
                table = changes[0].table
                use = _use(control, next(iter(changes[0].cells)), check)
                break
            if changes:
                await probe.renew()
        if use is not None:
            uses.append(use)
        else:
            idle.append(control)
    found = [_named(probe, op="update", table=table, fields=uses)] if uses else []
    for radio in [control for control in form.controls if control.kind == "radio" and control.value is None]:
        found += await _choice(probe.app, probe.target, radio, idle)
    return found


def _other(control: Control, number: int) -> str | None:
    """Another value than the one that is set."""
    if control.kind == "select":
        return next((value for value, text in control.options if value and value != control.value), None)
    return str(number)


async def _choice(app: WebApp, target: Target, radio: Control, idle: list[Control]) -> list[Function]:
    """What a form does with a radio button set."""
    choice = {radio.name: radio.options[0][0]}
    async with prober(app, target) as probe:
        changes = await probe.send(target.keys[0], choice)
        if len(changes) != 1 or changes[0].op != "update":
            return []
        base = dict(changes[0].cells)
    uses = []
    for number, control in enumerate(idle, start=FIRST_PROBE + 5000):
        value = _other(control, number)
        if value is None or not control.name.startswith(f"{radio.name}_{choice[radio.name]}"):
            continue
        async with prober(app, target) as probe:
            changes = await probe.send(target.keys[0], choice | {control.name: value})
        if len(changes) == 1 and (column := next((c for c, v in changes[0].cells.items() if v == value), None)):
            uses.append(_use(control, column))
            base.pop(column, None)
    async with prober(app, target) as probe:
        return [_named(probe, op="update", table=changes[0].table, suffix=choice[radio.name], fields=uses, fixed=choice, constants=base)]


async def _by_title(probe: Prober, form: Form, filled: Mapping[str, str]) -> list[Function]:
    """A field may say which row is meant: each is tried with the title of a row."""
    for name in filled:
        for table, described in probe.app.tables.items():
            state = await probe.running.state()
            if name != described.title or described.title not in _columns(state, table):
                continue
            rows = state[table]
            row_key = next(iter(rows))
            changes = await probe.send(probe.target.keys[0], {**filled, name: str(rows[row_key][name])})
            if not changes:
                continue
            change = _only(changes)
            if change.key != row_key or change.table != table:
                raise Dropped("changes another row than it names")
            controls = {control.name: control for control in form.controls}
            by_value = {value: field for field, value in filled.items()}
            uses = [_use(controls[name], None)]
            uses += [_use(controls[by_value[value]], column) for column, value in change.cells.items() if value in by_value]
            return [_named(probe, op=change.op, table=table, fields=uses)]
    raise Dropped("changes nothing")


def _columns(state: State, table: str) -> set[str]:
    return set(next(iter(state[table].values()), {}))


async def _is_confirmed(probe: Prober, function: Function) -> bool:
    """Whether it does what was learned, with other values and on another row."""
    key = probe.target.keys[-1]
    state = await probe.running.state()
    values: dict[str, str] = dict(function.fixed)
    row_key = key
    cells = {column: key if value == KEY else value for column, value in function.constants.items()}
    _, form = await probe.form(key)
    controls = {control.name: control for control in form.controls}
    for number, use in enumerate(function.fields, start=FIRST_PROBE + 9000):
        if use.column is None:
            title = probe.app.tables[function.table].title
            row_key = list(state[function.table])[-1]
            values[use.name] = str(state[function.table][row_key][title])
            continue
        value = _other(controls[use.name], number)
        if value is None:
            return False
        values[use.name] = cells[use.column] = value
        if use.check:
            values[use.check] = controls[use.check].options[0][0]
    changes = await probe.send(key, values)
    wanted = Change(
        op=function.op,
        table=function.table,
        key=None if function.op == "insert" else row_key,
        cells=cells if function.op != "delete" else {},
    )
    return not unmet([wanted], changes)
