"""The terminal: what a command gives, what is kept from one to the next, what happens to those that do not end or end badly."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from sandbox.terminal.bubblewrap import JailLimits, find_bubblewrap
from sandbox.terminal.jail import Jail
from sandbox.terminal.output import Capture, cleaned
from sandbox.terminal.shell import Result, Terminal, TerminalLimits
from tests.growth import FACTOR, growth
from warehouse.core.errors import BubblewrapMissing, JailCrashed

Use = Callable[[Terminal], Coroutine[Any, Any, Any]]
LIMITS = TerminalLimits(wait_s=30)


@pytest.fixture
def terminal() -> Callable[..., Any]:
    """Runs `use(terminal)` on one of its own."""

    def run(use: Use, limits: TerminalLimits = LIMITS, jail_limits: JailLimits | None = None) -> Any:
        async def whole() -> Any:
            jail = await Jail.start(jail_limits)
            try:
                terminal = await Terminal.open(jail, limits)
                try:
                    return await use(terminal)
                finally:
                    await terminal.close()
            finally:
                await jail.close()

        return asyncio.run(whole())

    return run


async def results(terminal: Terminal, *commands: str) -> list[Result]:
    return [await terminal.execute(command) for command in commands]


async def start_sleeping(live: Terminal) -> None:
    """A process that does nothing. Raises OSError where the jail has none to spare."""
    for fd in (await live._jail.spawn(["/bin/sleep", "1000"])).take_streams():
        os.close(fd)


async def sleepers_left(jail: Jail, num: int) -> bool:
    """Whether so many processes that do nothing are left, once those that were killed are gone."""
    deadline = time.monotonic() + 30
    while (is_other := (await jail.run(["/usr/bin/pgrep", "-xc", "sleep"])).output != b"%d\n" % num) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return not is_other


def texts(terminal: Any, *commands: str) -> list[str]:
    return [result.text for result in terminal(lambda live: results(live, *commands))]


def test_output_and_exit_code_come_back(terminal: Any) -> None:
    assert texts(terminal, "echo hi", "echo out; echo err >&2; (exit 3)", "printf 'no line end'", "true") == [
        "hi\n[exit code 0]",
        "out\nerr\n[exit code 3]",
        "no line end\n[exit code 0]",
        "[exit code 0]",
    ]


def test_the_shell_keeps_its_state(terminal: Any) -> None:
    set_up = "mkdir a && cd a; x=5; f() { echo $x $?; }; declare -A m=([k]=v); set -o noclobber; alias l=echo; false"
    first, second = texts(terminal, set_up, "f; pwd; echo ${m[k]}; l aliased; echo x > y; echo z > y")
    assert first == "[exit code 1, in /workspace/a]"
    assert second == "5 1\n/workspace/a\nv\naliased\nbash: y: cannot overwrite existing file\n[exit code 1, in /workspace/a]"


def test_many_lines_quotes_and_odd_characters_reach_the_shell(terminal: Any) -> None:
    here = "cat <<'E'\na 'b' \"c\" $d `e` \\f é →\n\tg!\nE"
    assert texts(terminal, here, "for i in 1 2\ndo\n  echo $i\ndone # said", "echo 'unended", f"echo {'x' * 5000}") == [
        "a 'b' \"c\" $d `e` \\f é →\n\tg!\n[exit code 0]",
        "1\n2\n[exit code 0]",
        "bash: unexpected EOF while looking for matching `''\n[exit code 2]",
        f"{'x' * 5000}\n[exit code 0]",
    ]


def test_programs_see_a_terminal_and_no_escapes_come_out(terminal: Any) -> None:
    text = texts(terminal, "[ -t 0 ] && [ -t 1 ] && tty; printf '\\033[31mred\\033[0m 10%%\\r20%%\\r\\n'; stty size")[0]
    assert text == "/dev/pts/0\n20%\n40 120\n[exit code 0]"


def test_what_a_command_prints_cannot_pass_for_its_end(terminal: Any) -> None:
    """The report has a secret, which is on the command line of no process and in no environment."""

    async def use(live: Terminal) -> None:
        forged = "printf '\\036%032d;1;0;/etc\\036' 0; printf '\\036;;;\\036'; env; cat /proc/$$/environ /proc/$$/cmdline"
        result = await live.execute(f"{forged}; echo not yet; sleep 0.3; echo end")
        assert result.output.endswith("not yet\nend\n") and result.exit_code == 0 and live.cwd == "/workspace"
        result = await live.execute("declare -f; (exit 4)")
        assert result.exit_code == 4

    terminal(use)


def test_a_command_that_lasts_is_read_from_again(terminal: Any) -> None:
    async def use(live: Terminal) -> None:
        first = await live.execute("echo one; read x < <(while [ ! -e go ]; do sleep 0.05; done; echo go); echo two", wait_s=0.5)
        assert first.is_running and first.output == "one\n" and "still running" in first.note and first.exit_code is None
        second = await live.execute("echo refused")
        assert second.is_error and "one at a time" in second.text and second.text.startswith("error: ")
        live._jail.workspace.write("go", "")
        last = await live.execute("")
        assert last.output == "two\n" and last.exit_code == 0
        assert (await live.execute("")).text == "[no command is running]"

    terminal(use)


@pytest.mark.parametrize(
    "command", ["sleep 100", "while :; do :; done", "while :; do sleep 0.1; done", "cat", "python3 -c 'while True: pass'"]
)
def test_control_c_ends_what_runs_and_nothing_else(terminal: Any, command: str) -> None:
    async def use(live: Terminal) -> None:
        await live.execute("x=kept; sleep 100 &")
        assert (await live.execute(command, wait_s=0.3)).is_running
        for _ in range(3):  # one that meets a child in its last moment ends the child alone, as in any shell: a person presses again
            ended = await live.execute("C-c", wait_s=10)
            if not ended.is_running:
                break
        assert not ended.is_running and ended.exit_code in (130, 1)
        assert (await live.execute("echo $x; jobs -r | wc -l")).output == "kept\n1\n"

    terminal(use)


def test_control_d_ends_the_input_of_what_runs(terminal: Any) -> None:
    async def use(live: Terminal) -> None:
        assert (await live.execute("wc -c; echo after", wait_s=0.3)).is_running
        assert (await live.execute("C-d")).output == "0\nafter\n"

    terminal(use)


def test_what_does_not_obey_is_killed_at_the_third_time(terminal: Any) -> None:
    async def use(live: Terminal) -> None:
        assert (await live.execute("trap '' INT; (sleep 100); echo after", wait_s=0.3)).is_running
        assert [(await live.execute("C-c", wait_s=0.2)).is_running for _ in range(2)] == [True, True]
        last = await live.execute("C-c")
        assert "did not obey 3 C-c and was killed" in last.text and last.exit_code is not None
        assert (await live.execute("echo alive")).output == "alive\n"

    terminal(use)


def test_a_command_is_killed_that_runs_too_long(terminal: Any) -> None:
    limits = TerminalLimits(wait_s=30, command_s=0.5)
    result = terminal(lambda live: live.execute("trap '' INT; sleep 100"), limits)
    assert "ran longer than" in result.note and not result.is_running


@pytest.mark.parametrize("command", ["sleep 100", "while :; do sleep 100; done"])
def test_a_command_that_runs_too_long_is_killed_while_no_call_waits_for_it(terminal: Any, command: str) -> None:
    async def use(live: Terminal) -> None:
        await live.execute("sleep 1000 &")
        assert (await live.execute(f"trap '' INT; {command}", wait_s=0.1)).is_running
        assert await sleepers_left(live._jail, 1)
        last = await live.execute("")
        assert "ran longer than 0.5 s" in last.note and not last.is_running
        assert (await live.execute("pgrep -fc 'sleep 1000'; echo alive")).output == "1\nalive\n"

    terminal(use, TerminalLimits(wait_s=30, command_s=0.5))


def test_background_services_go_on_and_their_output_comes_later(terminal: Any) -> None:
    async def use(live: Terminal) -> None:
        behind = "(while [ ! -e go ]; do sleep 0.05; done; echo from behind) & nohup sleep 100 > /dev/null 2>&1 &"
        assert (await live.execute(behind)).exit_code == 0
        text, deadline = (await live.execute("touch go")).output, time.monotonic() + 30
        while "from behind\n" not in text and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            text += (await live.execute("")).output
        assert "from behind\n" in text
        assert "sleep 100" in (await live.execute("ps ax")).output

    terminal(use)


@pytest.mark.parametrize(
    ("command", "how"),
    [("exit 3", "exit code 3"), ("kill -9 $$", "signal 9"), ("set -e; false", "exit code 1"), ("exec true", "exit code 0")],
)
def test_a_shell_that_died_is_started_again_and_that_is_said(terminal: Any, command: str, how: str) -> None:
    async def use(live: Terminal) -> None:
        await live.execute("cd /tmp; x=5; echo kept > /workspace/kept")
        died = await live.execute(f"echo last words; {command}")
        assert died.output.startswith("last words\n") and f"the shell ended ({how})" in died.note and "a new one was started" in died.note
        assert (await live.execute('echo "x=$x"; pwd; cat kept')).output == "x=\n/workspace\nkept\n"

    terminal(use)


def test_a_shell_that_died_between_two_calls_is_started_again(terminal: Any) -> None:
    async def use(live: Terminal) -> None:
        await live.execute("(sleep 0.2; kill -9 $$) &")
        assert live._shell is not None
        await asyncio.wait_for(live._shell.ended, 30)
        result = await live.execute("echo alive")
        assert result.output.endswith("alive\n") and "new one was started" in result.note and result.exit_code == 0

    terminal(use)


def test_output_sent_elsewhere_does_not_lose_the_shell(terminal: Any) -> None:
    assert texts(terminal, "exec > log 2>&1", "echo logged", "exec > /dev/tty 2>&1", "cat log") == [
        "[exit code 0]",
        "[exit code 0]",
        "[exit code 0]",
        "logged\n[exit code 0]",
    ]


def test_a_terminal_left_in_disorder_is_put_right(terminal: Any) -> None:
    commands = ("stty raw echo onlcr -isig", "echo fine; stty -a | grep -c -- '-echo '")
    assert texts(terminal, *commands) == ["[exit code 0]", "fine\n1\n[exit code 0]"]


def test_long_output_keeps_its_ends_and_says_what_is_missing(terminal: Any) -> None:
    limits = TerminalLimits(wait_s=30, output_chars=1000)
    result = terminal(lambda live: live.execute("seq 1 100000"), limits)
    total = sum(len(str(number)) + 1 for number in range(1, 100_001))
    assert result.output.startswith("1\n2\n3\n") and result.output.endswith("99999\n100000\n")
    assert f"[… {total - 1000} characters left out …]" in result.output and len(result.output) < 1100


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 250, 400, 450, 5000])
@pytest.mark.parametrize("letter", ["x", "é", "→"])
def test_a_capture_loses_count_of_nothing(size: int, letter: str) -> None:
    capture = Capture(100)
    data = (letter * size).encode()
    for start in range(0, len(data), 7):
        capture.add(data[start : start + 7])
    text = capture.take()
    if size <= 100:
        assert text == letter * size
    else:
        start, _, rest = text.partition("\n[… ")
        num, _, end = rest.partition(" characters left out …]\n")
        assert len(start) == len(end) == 50 and abs(int(num) - (size - 100)) <= 2  # a cut inside of a character shows as up to two
    assert capture.take() == ""


def test_the_work_of_cleaning_text_does_not_grow_with_the_square() -> None:
    assert len(cleaned(b"x" * 2_000_000)) == 2_000_000 and cleaned(b"\r" * 1_000_000 + b"end") == "end"
    assert growth(lambda length: cleaned(b"x" * length), 500_000) < 3 * FACTOR
    assert growth(lambda length: cleaned(b"\r" * length + b"end"), 500_000) < 3 * FACTOR
    assert growth(lambda length: cleaned(b"\x1b[" * length), 250_000) < 3 * FACTOR


def test_two_calls_at_once_are_refused(terminal: Any) -> None:
    async def use(live: Terminal) -> None:
        slow = asyncio.ensure_future(live.execute("sleep 0.3; echo slow"))
        await asyncio.sleep(0.05)
        assert (await live.execute("echo fast")).is_error
        assert (await slow).output == "slow\n"

    terminal(use)


def test_a_jail_full_of_processes_says_so(terminal: Any) -> None:
    async def use(live: Terminal) -> None:
        await live.execute("for i in $(seq 1 40); do sleep 100 & done 2> /dev/null", wait_s=3)
        with pytest.raises(OSError, match="temporarily unavailable"):
            for _ in range(40):
                await start_sleeping(live)

    terminal(use, jail_limits=JailLimits(processes=24))


def test_a_program_of_the_verifiers_is_run_to_its_end() -> None:
    async def use() -> None:
        jail = await Jail.start()
        try:
            big = await jail.run(["/bin/bash", "-c", "cat; seq 1 50000; exit 3"], given=b"x" * 300_000, limit_bytes=400_000)
            assert big.exit_code == 3 and len(big.output) == 400_000 and big.output.startswith(b"x" * 300_000 + b"1\n2\n")
            left = await jail.run(["/bin/bash", "-c", "sleep 1000 & echo started"])
            assert left.exit_code == 0 and left.output == b"started\n"
            late = await jail.run(["/bin/bash", "-c", "echo begun; sleep 1000"], timeout_s=0.5)
            assert late.exit_code is None and late.output == b"begun\n"
            assert await sleepers_left(jail, 1)
            with pytest.raises(OSError, match="No such file"):
                await jail.run(["/usr/bin/no-such-program"])
            with pytest.raises(OSError, match="too much for a command line"):
                await jail.run(["/bin/echo", "x" * 200_000])
        finally:
            await jail.close()

    asyncio.run(use())


def test_a_long_command_is_taken_whole(terminal: Any) -> None:
    text = "x" * 90_000
    result = terminal(lambda live: live.execute(f"cat > long <<'E'\n{text}\nE\nwc -c long"))
    assert result.output == "90001 long\n"


def test_a_shell_that_was_stopped_is_killed_and_started_again(terminal: Any) -> None:
    async def use(live: Terminal) -> None:
        assert (await live.execute("kill -STOP $$", wait_s=0.3)).is_running
        for _ in range(2):
            await live.execute("C-c", wait_s=0.2)
        assert "a new one was started" in (await live.execute("C-c")).note
        assert (await live.execute("echo alive")).output == "alive\n"

    terminal(use)


def test_a_missing_bubblewrap_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    find_bubblewrap.cache_clear()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BubblewrapMissing, match="apt-get install bubblewrap"):
        asyncio.run(Jail.start())


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", BubblewrapMissing, "Allow user namespaces"),
        ("echo '{\"child-pid\": 999999999}' >&$info; echo 'proc: not permitted' >&2; exit 1", BubblewrapMissing, "proc: not permitted"),
        ("exit 7", JailCrashed, "ended before the jail was up"),
    ],
)
def test_a_bubblewrap_that_fails_is_reported_in_its_own_words(
    monkeypatch: pytest.MonkeyPatch, script: str, kind: type[Exception], said: str
) -> None:
    """A stand-in that fails as bubblewrap does where namespaces or mounts are forbidden, before and after it has told a process number."""
    find_descriptor = 'while [ "$1" != --info-fd ]; do shift; done; info=$2'
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # which the jail's user has to reach
        program = Path(folder, "bwrap")
        program.write_text(f"#!/bin/bash\n{find_descriptor}\n{script}\n")
        for path in (program, program.parent):
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        find_bubblewrap.cache_clear()
        try:
            with pytest.raises(kind, match=said):
                asyncio.run(Jail.start())
        finally:
            find_bubblewrap.cache_clear()


def test_a_jail_whose_start_is_cut_off_leaves_nothing() -> None:
    async def use() -> None:
        for delay_s in (0.0, 0.01, 0.02, 0.05):
            starting = asyncio.ensure_future(Jail.start())
            await asyncio.sleep(delay_s)
            starting.cancel()
            try:
                await (await starting).close()
            except asyncio.CancelledError:
                continue
        deadline = time.monotonic() + 30
        while (left := [each for each in psutil.Process().children() if "bwrap" in each.name()]) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        assert not left

    asyncio.run(use())


def test_a_command_that_ended_between_two_calls_is_in_nobodys_way(terminal: Any) -> None:
    async def use(live: Terminal) -> None:
        for then, wanted in (("echo next", "[the command before ended with exit code 7; exit code 0]"), ("", "[exit code 7]")):
            command = "read x < <(while [ ! -e go ]; do sleep 0.05; done); rm go; echo late; (exit 7)"
            assert (await live.execute(command, wait_s=0.3)).is_running
            live._jail.workspace.write("go", "")
            deadline = time.monotonic() + 30
            while live.is_running and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
            result = await live.execute(then)
            assert result.output == ("late\nnext\n" if then else "late\n") and result.text.endswith(wanted)

    terminal(use)


def test_a_shell_that_ends_under_endless_output_is_started_again(terminal: Any) -> None:
    async def use(live: Terminal) -> None:
        assert "a new one was started" in (await live.execute("yes & sleep 0.2; exit")).note
        assert (await live.execute("pkill yes; echo alive")).output.endswith("alive\n")

    terminal(use)


def test_a_shell_that_cannot_be_started_again_costs_what_runs_in_the_background(terminal: Any) -> None:
    async def fill(live: Terminal) -> None:
        with pytest.raises(OSError, match="temporarily unavailable"):
            while True:
                await start_sleeping(live)

    async def use(live: Terminal) -> None:
        await fill(live)
        assert live._shell is not None
        await live._shell.kill()
        await live._shell.wait()
        await fill(live)  # the place that the shell had
        result = await live.execute("pgrep -c sleep; echo alive")
        assert "everything in the background was killed" in result.note and "a new one was started" in result.note
        assert result.output == "0\nalive\n"

    terminal(use, jail_limits=JailLimits(processes=24))
