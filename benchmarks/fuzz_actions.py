"""Fuzzed actions: random sequences of all that a policy can do, hostile text among it, on live sessions of every kind that runs here.

No sequence may end as an error of the infrastructure on a healthy machine: whatever a policy does comes back as a transition or a verdict.
Each episode is one line of the log, by its number, from which its task and its actions are made: an interrupted run goes on where it was,
and `--episode N` plays one again, aloud.

    python -m benchmarks.fuzz_actions --actions 100000 --log .bench/fuzz.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sandbox import actions
from sandbox.actions import Action
from sandbox.browser.backend import Kind
from sandbox.pool.pool import SessionPool
from sandbox.pool.pool_protocol import SessionPoolProtocol
from sandbox.tasks.sources import tasks_of
from sandbox.tasks.task import Task
from warehouse.core.errors import SandboxError

SELECTIONS = {
    "page": "miniwob:quickstart",
    "game": "games:small",
    "terminal": "terminal",
    "hybrid": "hybrid",
    "web": "web",
    "desktop": "desktop",
}
SHARES = {"page": 4, "game": 2, "terminal": 12, "hybrid": 4, "web": 1, "desktop": 1}
"""How often a kind is played beside the others."""
ACTIONS_PER_EPISODE = 60
"""Tasks get as many steps: a reset takes longer than all of them."""
ROOM_PX = 1400
KEYS = (
    "enter",
    "tab",
    "escape",
    "ctrl",
    "alt",
    "shift",
    "meta",
    "f1",
    "f5",
    "f11",
    "f12",
    "a",
    "c",
    "v",
    "w",
    "t",
    "l",
    "s",
    "p",
    "1",
    "9",
    "backspace",
    "delete",
    "up",
    "pagedown",
    "printscreen",
    "",
    "\0",
    "é",
    "kein",
)
TEXTS = (
    "",
    "x",
    "\n",
    "\t",
    "\0",
    "\x1b[2J",
    "\u202e",
    "\ud800",
    "x" * 5000,
    "<script>for(;;);</script>",
    "' OR 1=1 --",
    "%00",
    "../../etc/passwd",
    "DROP TABLE products; CREATE VIEW products AS SELECT 1",
    "1e999",
    "-1",
    "🙂" * 20,
    "a\r\nb",
    "${IFS}",
    "{{7*7}}",
    "=1+1",
)
ADDRESSES = (
    "blob:https://shop.test/x",
    "blob:null/x",
    "data:text/html,x",
    "data://x",
    "javascript:for(;;);",
    "view-source:http://localhost:8001/",
    "chrome://crash",
    "chrome://kill",
    "chrome://hang",
    "chrome://quit",
    "about:blank",
    "about:srcdoc",
    "about:crash",
    "file:///etc/passwd",
    "file://localhost/",
    "filesystem:http://localhost/x",
    "http://localhost:1/",
    "http://localhost:8000/",
    "http://localhost:8001/",
    "http://localhost:8001/" + "a" * 70_000,
    "http://[::1",
    "http://x:99999/",
    "https://\ud800/",
    "http://\0/",
    "",
    " ",
    "//",
    "ws://x/",
    "devtools://devtools/bundled/inspector.html",
    "http://user:pw@localhost:8001/",
    "http://127.1:8001/",
    "about:blank#" + "x" * 70_000,
    "http://localhost:8001/query/?sql=select+1",
    "http://localhost:8001/-/config.json",
    "http://localhost:8001/report?action=new",
)
SERVED = (
    "<script>for(;;);</script>",
    "<script>setInterval(()=>alert(1),1)</script>",
    "<script>location.reload()</script>",
    "<script>const u=URL.createObjectURL(new Blob(['x']));URL.revokeObjectURL(u);location=u</script>",
    "<script>onload=()=>close()</script>",
    "<script>for(let i=0;i<50;i++)open('/')</script>",
    "<script>onbeforeunload=()=>1;debugger;print()</script>",
    "<meta http-equiv=refresh content=0>",
    "<script>for(let i=0;i<1e4;i++)history.pushState(i,'','?'+i)</script>",
    "<script>document.documentElement.remove()</script>",
    "<script>Object.prototype.toJSON=()=>{throw 1};Object.defineProperty(document,'title',{get(){throw 1}})</script>",
    "<div style='width:1e8px;height:1e8px'>x</div>",
    "<iframe src=/></iframe>" * 20,
)
COMMANDS = (
    "true",
    "false",
    "exit",
    "exit 3",
    "exec 1>&- 2>&-",
    "kill -9 -1",
    "kill -9 $$",
    "kill -STOP $$",
    "yes | head -c 100000",
    "cat /dev/urandom | head -c 20000",
    "rm -rf /workspace/* /tmp/*",
    "chmod 000 /workspace",
    "cd / && rm -rf .",
    "ulimit -n 3",
    "ulimit -v 1000",
    "ulimit -u 1",
    "stty raw",
    "trap '' INT TERM HUP",
    "set -e; false",
    "unset PATH",
    "PATH=",
    "PS1='$(false)'",
    "alias ls=false; ls",
    "sleep 1000 &",
    "mkfifo x; cat x &",
    "printf '\\0\\377\\n'",
    "printf '\\033]0;x\\007'",
    "cat",
    "read x",
    "python3 -c 'import os; os.fork()'",
    "ln -s / root; ls root",
    "dd if=/dev/zero of=big bs=1M count=600",
    "while :; do mkdir -p d && cd d; done & sleep 0.1",
    "'",
    '"',
    "$(",
    "<<EOF",
    "\\",
    "a\0b",
    "\x03",
    "\x04",
    "\x1a",
    "kill -9 1",
    "exec sleep 0.2",
    "echo $PPID; ls /proc/1/fd; kill -STOP 1",
    "touch $'\\xff\\xfe'",
    "git init . && git commit --allow-empty -m x",
    "mv /workspace /w",
    "umask 777; touch u",
)


def fuzzed_action(dice: random.Random, kind: str) -> Action:
    """Any action there is; what goes with a kind of session more often."""
    makers: list[Callable[[random.Random], Action]] = [*_INPUTS]
    if kind in {"hybrid", "web", "desktop"}:
        makers += [lambda d: actions.Navigate(url=d.choice(ADDRESSES))] * 6 + [lambda d: actions.NavigateBack()] * 2
    if kind in {"hybrid", "terminal"}:
        makers += [_tool_call] * 24
    return dice.choice(makers)(dice)


def fuzzed_episode(number: int, kinds: Sequence[str]) -> tuple[str, Task, int, list[Action]]:
    """Kind, task, seed and actions of one episode; the same for the same number and kinds."""
    dice = random.Random(number)
    kind = dice.choices(kinds, [SHARES[each] for each in kinds])[0]
    task = dice.choice(tasks_of(SELECTIONS[kind])).model_copy(update={"max_steps": ACTIONS_PER_EPISODE})
    return kind, task, dice.randrange(10_000), [fuzzed_action(dice, kind) for _ in range(ACTIONS_PER_EPISODE)]


async def play(
    pool: SessionPoolProtocol, task: Task, seed: int, todo: Sequence[Action], say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Take the actions until the episode ends, and judge it. `outcome` is success, failed or crashed; then `error` says by what."""
    num_taken, started_s, at = 0, time.monotonic(), "reset"
    try:
        async with pool.lease(task, screenshots=False) as session:
            await session.reset(task, seed)
            for action in todo:
                at = action.kind
                say(repr(action)[:200])
                transition = await session.step(action)
                num_taken += 1
                say(f"    {transition.info} {transition.observation.output[-200:]!r}")
                if transition.terminated or transition.truncated:
                    break
            at = "evaluate"
            outcome: dict[str, Any] = {"outcome": "success" if (await session.evaluate()).success else "failed"}
    except SandboxError as error:
        outcome = {"outcome": "crashed", "error": f"{type(error).__name__} at {at}: {str(error)[:300]}"}
    except Exception as error:  # worse: the sessions' protocol knows no other error
        outcome = {"outcome": "broken", "error": f"{type(error).__name__} at {at}: {str(error)[:300]}"}
    return {**outcome, "num_actions": num_taken, "seconds": round(time.monotonic() - started_s, 2)}


def _text(dice: random.Random) -> str:
    if dice.random() < 0.6:
        return dice.choice(TEXTS)
    return "".join(chr(dice.choice((dice.randrange(32, 127), dice.randrange(0xD800)))) for _ in range(dice.randrange(30)))


def _point(dice: random.Random) -> tuple[int, int]:
    if dice.random() < 0.9:
        return dice.randrange(180), dice.randrange(220)
    return dice.choice((-10_000, -1, 100_000, dice.randrange(ROOM_PX))), dice.randrange(-9, ROOM_PX)


def _keys(dice: random.Random) -> tuple[str, ...]:
    return tuple(dice.choice(KEYS) for _ in range(dice.randint(1, 3)))


def _click(dice: random.Random) -> Action:
    x, y = _point(dice)
    return actions.Click(x=x, y=y, button=dice.choice(("left", "left", "left", "middle", "right")), count=dice.randint(1, 3))


def _drag(dice: random.Random) -> Action:
    (x, y), (to_x, to_y) = _point(dice), _point(dice)
    return actions.Drag(x=x, y=y, to_x=to_x, to_y=to_y)


def _scroll(dice: random.Random) -> Action:
    x, y = _point(dice)
    return actions.Scroll(direction=dice.choice(("up", "down", "left", "right")), x=x, y=y)


def _select(dice: random.Random) -> Action:
    x, y = _point(dice)
    return actions.SelectOption(x=x, y=y, option=_text(dice))


def _served(dice: random.Random) -> Action:
    """A page of the agent's own, to be shown from its terminal."""
    page = dice.choice(SERVED)
    command = f"mkdir -p /tmp/s; cat > /tmp/s/index.html <<'E'\n{page}\nE\ncd /tmp/s && (python3 -m http.server 8000 >/dev/null 2>&1 &)"
    return actions.ToolCall(name="execute_bash", arguments={"command": command})


def _tool_call(dice: random.Random) -> Action:
    draw = dice.random()
    if draw < 0.5:
        return actions.ToolCall(name="execute_bash", arguments={"command": dice.choice(COMMANDS)})
    if draw < 0.7:
        return _served(dice)
    if draw < 0.85:
        arguments = {
            "command": dice.choice(("view", "create", "str_replace", "insert", "undo_edit", "x")),
            "path": _text(dice),
            "file_text": _text(dice),
        }
        return actions.ToolCall(name="str_replace_editor", arguments=arguments)
    if draw < 0.95:
        code = dice.choice(
            ("1", "exit()", "import os; os.kill(os.getpid(), 9)", "print('x' * 10**6)", "x" * 1000, "\0", "def f(): f()\nf()", _text(dice))
        )
        return actions.ToolCall(name="JupyterCI", arguments={"code": code, "timeout": dice.choice((1, 2, -1, "x"))})
    return actions.ToolCall(
        name=dice.choice(("Search", "LinkReader", "mcp", "", "x")), arguments={_text(dice): _text(dice), "query": _text(dice)}
    )


_INPUTS: tuple[Callable[[random.Random], Action], ...] = (
    _click,
    _click,
    _click,
    _drag,
    _scroll,
    _select,
    lambda d: actions.MoveTo(x=_point(d)[0], y=_point(d)[1]),
    lambda d: actions.MouseDown(button=d.choice(("left", "middle", "right"))),
    lambda d: actions.MouseUp(x=_point(d)[0], y=_point(d)[1]),
    lambda d: actions.TypeText(text=_text(d)),
    lambda d: actions.TypeText(text=_text(d)),
    lambda d: actions.Hotkey(keys=_keys(d)),
    lambda d: actions.Hotkey(keys=_keys(d)),
    lambda d: actions.KeyDown(key=d.choice(KEYS)),
    lambda d: actions.KeyUp(key=d.choice(KEYS)),
    lambda d: actions.Wait(seconds=d.choice((0.001, 0.1, 1.0))),
    lambda d: actions.LongPress(x=_point(d)[0], y=_point(d)[1]),
    lambda d: actions.OpenApp(name=_text(d)),
    lambda d: actions.PressHome(),
    lambda d: actions.PressBack(),
    lambda d: actions.InvalidAction(text=_text(d), reason="fuzzed"),
    lambda d: actions.ToolCall(name="execute_bash", arguments={"command": "true"}),
)


async def run(log: Path, num_actions: int, kinds: Sequence[str], *, concurrency: int, browser: Kind, deadline_s: float) -> None:
    """Episodes from the first number that the log does not have, until the log holds so many actions or the time is up."""
    log.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done, num_taken = {line["episode"] for line in lines}, sum(line["num_actions"] for line in lines)
    numbers = iter(number for number in range(10**9) if number not in done)
    stop_at_s = time.monotonic() + deadline_s
    async with SessionPool(kind=browser, size=concurrency) as pool:

        async def worker() -> None:
            nonlocal num_taken
            while num_taken < num_actions and time.monotonic() < stop_at_s:
                number = next(numbers)
                kind, task, seed, todo = fuzzed_episode(number, kinds)
                line = {"episode": number, "kind": kind, "task": task.name, "seed": seed, **await play(pool, task, seed, todo)}
                num_taken += line["num_actions"]
                with log.open("a") as file:
                    file.write(json.dumps(line) + "\n")

        await asyncio.gather(*(worker() for _ in range(concurrency)))


async def replay(number: int, kinds: Sequence[str], browser: Kind) -> None:
    kind, task, seed, todo = fuzzed_episode(number, kinds)
    async with SessionPool(kind=browser, size=1) as pool:
        print(kind, task.name, seed, await play(pool, task, seed, todo, print))


def report(log: Path) -> None:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    print(f"{sum(line['num_actions'] for line in lines)} actions in {len(lines)} episodes")
    for kind in SELECTIONS:
        of_kind = [line for line in lines if line["kind"] == kind]
        if of_kind:
            outcomes = Counter(line["outcome"] for line in of_kind)
            print(f"{kind}: {sum(line['num_actions'] for line in of_kind)} actions, {dict(outcomes)}")
    for line in lines:
        if line["outcome"] in {"crashed", "broken"}:
            print(f"    episode {line['episode']} ({line['kind']}, {line['task']}): {line['error']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actions", type=int, default=100_000)
    parser.add_argument("--log", type=Path, default=Path(".bench/fuzz.jsonl"))
    parser.add_argument("--kinds", default="page,game,terminal,hybrid,web")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--browser", default="auto")
    parser.add_argument("--episode", type=int, help="play this one again, aloud")
    given = parser.parse_args()
    kinds = given.kinds.split(",")
    if given.episode is not None:
        return asyncio.run(replay(given.episode, kinds, given.browser))
    asyncio.run(run(given.log, given.actions, kinds, concurrency=given.concurrency, browser=given.browser, deadline_s=given.minutes * 60))
    report(given.log)


if __name__ == "__main__":
    main()
