"""Attempts to get out of a terminal, each of which must fail while the host stays well. docs/isolation.md lists them.

Nothing here is sent to any address but this machine's loopback. What is tried is tried by programs inside a jail, as a policy would.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sandbox.actions import ToolCall
from sandbox.browser.isolation.scratch import browser_user
from sandbox.terminal.bubblewrap import JailLimits
from sandbox.terminal.cgroups import PREFIX, hierarchies
from sandbox.terminal.jail import Jail
from sandbox.terminal.shell import IDLE_BYTES_PER_S, TerminalLimits
from sandbox.terminal.tools import Tools, ToolSettings
from sandbox.terminal.workspace import Refused

SMALL = JailLimits(processes=48, memory_mib=160, workspace_mib=16, scratch_mib=8)
SETTINGS = ToolSettings(jail=SMALL, terminal=TerminalLimits(wait_s=60, printed_mib=8))
ROOT = Path(__file__).resolve().parents[2]
Use = Callable[[Tools], Coroutine[Any, Any, Any]]


@pytest.fixture
def jailed() -> Callable[..., Any]:
    """Runs `use(tools)` on a session of its own, and looks at the end that nothing of it is left."""

    def run(use: Use, settings: ToolSettings = SETTINGS) -> Any:
        async def whole() -> Any:
            tools = await Tools.open(settings)
            inside = descendants(tools.jail)
            try:
                return await use(tools)
            finally:
                inside |= descendants(tools.jail)
                await tools.close()
                assert not [process for process in inside if process.is_running()]

        return asyncio.run(whole())

    return run


def descendants(jail: Jail) -> set[psutil.Process]:
    """Every process of a jail, bubblewrap itself included."""
    try:
        top = psutil.Process(jail.pid)
        return {top, *top.children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


async def bash(tools: Tools, command: str) -> str:
    return await tools.call(ToolCall(name="execute_bash", arguments={"command": command}))


def says(jailed: Callable[[Use], Any], command: str) -> str:
    """What one command prints in a fresh session."""
    text: str = jailed(lambda tools: bash(tools, command))
    return text


@pytest.fixture
def stand_in() -> Iterator[tuple[int, list[bytes]]]:
    """A service on the host's loopback, as a database of the host would be: its port, and what reached it."""
    heard: list[bytes] = []
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(2)
                heard.append(b"connected")
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nsecret of the host\n")

    thread = threading.Thread(target=serve)
    thread.start()
    yield server.getsockname()[1], heard
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


HIDDEN = ("/etc/shadow", "/root", "/home", "/var", "/sys", "/boot", "/srv", "/run", "/opt", "/mnt", str(ROOT))


def test_host_files_are_not_there(jailed: Any) -> None:
    async def use(tools: Tools) -> None:
        for place in HIDDEN:
            assert "No such file or directory" in await bash(tools, f"ls -la {place}"), place

    jailed(use)


def test_what_is_there_of_the_host_cannot_be_written(jailed: Any) -> None:
    """Nor can anything else but the workspace, /tmp and /dev/shm."""
    command = "for d in / /usr /usr/bin /usr/local /etc /dev /proc; do touch $d/planted 2>/dev/null && echo written in $d; done; echo done"
    assert says(jailed, command) == "done\n[exit code 0]"
    command = "for f in /usr/bin/env /etc/passwd /etc/hosts; do echo x 2>/dev/null >> $f && echo written to $f; done; echo done"
    assert "written" not in says(jailed, command)
    assert not Path("/usr/planted").exists() and not Path("/usr/bin/planted").exists()


def test_no_path_through_proc_leads_to_the_host(jailed: Any) -> None:
    marker = ROOT / "pyproject.toml"
    command = f"cat /proc/1/root{marker} /proc/self/root{marker} /proc/*/root{marker} /proc/*/cwd{marker}; ls /proc/1/fd /proc/1/cwd/"
    text = says(jailed, f"{command}; echo end")
    assert "[project]" not in text and "end" in text
    assert "Permission denied" in text


def test_a_link_in_the_workspace_leads_nowhere(jailed: Any) -> None:
    async def use(tools: Tools) -> None:
        await bash(tools, "ln -s /etc/passwd a; ln -s / root; ln -s ../../../../etc b; ln -s /proc/self/root c")
        for path in ("a", "root/etc/passwd", "b/passwd", "c/etc/passwd"):
            with pytest.raises((Refused, OSError)):
                tools.jail.workspace.read(path)
            said = await tools.call(ToolCall(name="str_replace_editor", arguments={"command": "view", "path": path}))
            assert said.startswith("error: ") and "root:" not in said
            said = await tools.call(
                ToolCall(name="str_replace_editor", arguments={"command": "create", "path": f"{path}.new", "file_text": "x"})
            )
            assert said.startswith("error: ") or path == "a"

    jailed(use)


def test_the_network_of_the_host_is_out_of_reach(jailed: Any, stand_in: tuple[int, list[bytes]]) -> None:
    port, heard = stand_in
    text = says(
        jailed,
        f"curl -s -m 5 http://127.0.0.1:{port}/; curl -s -m 5 'http://[::1]:{port}/'; (echo x > /dev/tcp/127.0.0.1/{port}) 2>&1; "
        "cat /proc/net/dev | tail -n +3 | cut -d: -f1; ls /run/ /var/run 2>&1",
    )
    assert not heard and "secret" not in text
    assert "refused" in text and text.count("No such file") == 2
    interfaces = [line.strip() for line in text.splitlines() if line.startswith(" ")]
    assert interfaces == ["lo"]


def test_the_network_of_the_host_is_reached_where_it_was_opened(jailed: Any, stand_in: tuple[int, list[bytes]]) -> None:
    port, heard = stand_in
    settings = replace(SETTINGS, jail=replace(SMALL, network="open"))
    text = jailed(lambda tools: bash(tools, f"curl -s -m 5 http://127.0.0.1:{port}/; cat /etc/nsswitch.conf"), settings)
    assert heard == [b"connected"] and "secret of the host" in text and "hosts: files dns" in text


def test_abstract_sockets_of_the_host_are_out_of_reach(jailed: Any) -> None:
    name = f"flywheel-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        text = says(jailed, f"python3 -c \"import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0{name}')\"")
    assert "ConnectionRefusedError" in text


def test_sockets_are_of_three_families_only(jailed: Any) -> None:
    """AF_VSOCK knows no network namespace and reaches other jails; of the others none is needed."""
    program = (
        "import socket\n"
        "for family in range(64):\n"
        "    for kind in (1, 2, 3, 5):\n"
        "        for make in (socket.socket, socket.socketpair):\n"
        "            try: make(family, kind); print('opened', family)\n"
        "            except OSError: pass\n"
    )

    async def use(tools: Tools) -> str:
        tools.jail.workspace.write("families.py", program)
        return await bash(tools, "python3 families.py | sort -u; getent ahosts localhost")

    text = jailed(use)
    assert "opened 1\n" in text and "opened 2\n" in text and "127.0.0.1" in text
    assert {line for line in text.splitlines() if line.startswith("opened")} <= {"opened 1", "opened 2", "opened 10"}


def test_a_service_in_the_jail_is_reached_and_cannot_reach_back(jailed: Any, stand_in: tuple[int, list[bytes]]) -> None:
    """The connection is made from outside with a socket made inside: what accepts it holds a socket of the jail, and no other."""
    port, heard = stand_in

    async def use(tools: Tools) -> bytes:
        program = (
            "import socket\n"
            "s = socket.create_server(('127.0.0.1', 8123))\n"
            "while True:\n"
            "    c, who = s.accept()\n"
            f"    try: socket.create_connection(('127.0.0.1', {port}), 2)\n"
            "    except OSError as error: c.sendall(f'{who[0]} {error}'.encode())\n"
            "    c.close()\n"
        )
        tools.jail.workspace.write("service.py", program)
        await bash(tools, "python3 service.py & while ! grep -q 1FBB /proc/net/tcp; do sleep 0.05; done")
        reader, writer = await tools.jail.connect(8123)
        try:
            return await reader.read()
        finally:
            writer.close()

    said = jailed(use)
    assert said.startswith(b"127.0.0.1 ") and b"refused" in said and not heard


def test_connecting_where_nothing_listens_is_refused(jailed: Any) -> None:
    async def use(tools: Tools) -> None:
        with pytest.raises(ConnectionRefusedError, match="port 8124"):
            await tools.jail.connect(8124)

    jailed(use)


def test_a_fork_bomb_stays_inside_and_the_session_goes_on(jailed: Any) -> None:
    async def use(tools: Tools) -> None:
        before = len(psutil.pids())
        command = "bomb() { bomb | bomb & }; bomb 2> /dev/null; sleep 0.5; echo after"
        text = await bash(tools, command)
        assert len(psutil.pids()) < before + SMALL.processes + 40
        text += await wait_until(tools, "echo alive", "alive")
        assert "alive" in text

    jailed(use)


async def started(jail: Jail, name: str) -> psutil.Process:
    """The process of that name, once the shell's child has become it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in descendants(jail):
            if process.name() == name:
                return process
        await asyncio.sleep(0.05)
    raise AssertionError(f"no process {name} in the jail")


async def wait_until(tools: Tools, command: str, wanted: str) -> str:
    """Tries a command until it prints what is wanted: what crowds the jail dies away."""
    deadline = time.monotonic() + 60
    text = ""
    while wanted not in text and time.monotonic() < deadline:
        text = await bash(tools, command)
        await asyncio.sleep(0.2)
    return text


def test_memory_beyond_the_limit_is_not_given(jailed: Any) -> None:
    async def use(tools: Tools) -> None:
        before = psutil.virtual_memory().available
        text = await bash(tools, "python3 -c \"blocks = [b'x' * (1 << 20) for _ in range(2000)]; print('had it all')\"; echo code $?")
        assert "had it all" not in text and ("code 137" in text or "MemoryError" in text)
        assert before - psutil.virtual_memory().available < 4 << 30  # others use memory meanwhile
        assert "alive" in await bash(tools, "echo alive")

    jailed(use)


def test_files_cannot_fill_the_disk_nor_the_memory(jailed: Any) -> None:
    """Files are in memory, and each place has its size."""

    async def use(tools: Tools) -> None:
        text = await bash(tools, "for d in . /tmp /dev/shm; do head -c 100M /dev/zero > $d/big; done; du -m big /tmp/big /dev/shm/big")
        assert text.count("No space left on device") == 3
        assert "16\tbig" in text and "8\t/tmp/big" in text and "8\t/dev/shm/big" in text
        assert (tools.jail.memory_mib() or 0) < SMALL.memory_mib
        with pytest.raises(OSError, match="No space"):
            tools.jail.workspace.write("more", b"x" * 4096)
        assert "error: No space left" in await tools.call(
            ToolCall(name="str_replace_editor", arguments={"command": "create", "path": "more2", "file_text": "x" * 9000})
        )
        assert "[exit code 0]" in await bash(tools, "rm big /tmp/big /dev/shm/big; echo ok > small && cat small")

    jailed(use)


@pytest.mark.slow
def test_many_small_files_end_too(jailed: Any) -> None:
    text = says(jailed, "python3 -c \"\nn = 0\nwhile n < 500000: open(f'f{n}', 'w').close(); n += 1\"; echo status=$?")
    assert "status=" in text and "status=0" not in text


@pytest.mark.parametrize("command", ["yes", "head -c 300M /dev/zero", "x=$(printf %04000d 0); while :; do echo $x; done"])
def test_output_without_end_is_cut_and_costs_no_memory(jailed: Any, command: str) -> None:
    async def use(tools: Tools) -> None:
        before = psutil.Process().memory_info().rss
        text = await bash(tools, command)
        assert "printed more than 8 MiB" in text and len(text) < 20_000
        assert psutil.Process().memory_info().rss - before < 64 << 20
        assert "alive" in await bash(tools, "echo alive")

    jailed(use)


def test_background_output_without_end_is_held_back(jailed: Any) -> None:
    async def use(tools: Tools) -> None:
        await bash(tools, "yes &")
        printing = await started(tools.jail, "yes")
        began_s, before = time.monotonic(), printing.io_counters().write_chars
        await asyncio.sleep(1)
        printed = printing.io_counters().write_chars - before
        assert printed < IDLE_BYTES_PER_S * (time.monotonic() - began_s + 1), "nobody reads it as fast as it can print"
        assert "alive" in await wait_until(tools, "kill %1; echo alive", "alive")

    jailed(use)


def test_signals_reach_no_process_of_the_host(jailed: Any) -> None:
    """Not by -1, not by guessing the numbers that processes have outside, not process 1 of the jail itself."""
    victim = psutil.Popen(["/bin/sleep", "60"])
    try:
        text = says(jailed, f"trap '' TERM HUP; kill -9 1; kill -9 {victim.pid} {os.getpid()}; (kill -9 -1); echo still here")
        assert "No such process" in text
        assert victim.is_running() and victim.status() != psutil.STATUS_ZOMBIE
    finally:
        victim.kill()
        victim.wait()


def test_killing_everything_inside_leaves_a_session_that_works(jailed: Any) -> None:
    async def use(tools: Tools) -> None:
        tools.jail.workspace.write("kept.txt", "kept\n")
        await bash(tools, "kill -9 -1")
        await bash(tools, "python3 -c 'import os; os.kill(-1, 9)'")
        assert "kept" in await bash(tools, "cat kept.txt")
        assert tools.jail.is_alive

    jailed(use)


def test_settings_of_the_kernel_cannot_be_written(jailed: Any) -> None:
    before = Path("/proc/sys/kernel/hostname").read_text()
    text = says(
        jailed,
        "cd /proc; for f in sys/kernel/hostname sys/vm/drop_caches sysrq-trigger 1/oom_score_adj sys/kernel/core_pattern;"
        " do (echo 1 > $f) 2>/dev/null && echo wrote $f; done; hostname other; hostname; ls /sys",
    )
    assert "wrote" not in text and "sandbox" in text and "No such file" in text
    assert Path("/proc/sys/kernel/hostname").read_text() == before


POWERS = (
    "mount -t tmpfs none /tmp",
    "unshare -Ur true",
    "unshare -n true",
    "nsenter -t 1 -m true",
    "chroot / true",
    "mknod /tmp/disk b 254 0",
    "mknod /tmp/memory c 1 1",
    "umount /proc",
    'python3 -c "import ctypes,sys; sys.exit(0 if ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0 else 1)"',
    "python3 -c \"import fcntl,termios; fcntl.ioctl(0, termios.TIOCSTI, b'x')\"",
    'python3 -c "import ctypes,sys; c = ctypes.CDLL(None); sys.exit(0 if c.syscall(425, 8, 0) >= 0 else 1)"',
    "chown 0 /workspace",
    "renice -n -5 $$",
    "date -s 2030-01-01",
)


def test_nothing_that_takes_power_works(jailed: Any) -> None:
    async def use(tools: Tools) -> None:
        for command in POWERS:
            text = await bash(tools, f"{command} > /dev/null 2>&1; echo status=$?")
            assert "status=" in text and "status=0" not in text, command

    jailed(use)


def test_a_process_beside_cannot_be_traced_or_read(jailed: Any) -> None:
    """A helper of ours in the jail is safe from what the agent runs: no ptrace, and process 1 keeps its memory to itself."""
    text = says(jailed, "cat /proc/1/environ /proc/1/maps /proc/1/mem 2>&1 | head -c 300; ls -l /proc/1/exe")
    assert text.count("Permission denied") >= 3


def test_programs_with_more_rights_give_none(jailed: Any) -> None:
    """Set-uid programs are there, as files; they run without what they are for, and no capability is to be had."""
    text = says(
        jailed,
        "su -c id root < /dev/null; mount -t proc none /tmp 2>&1; cp /bin/bash b; chmod u+s b; ./b -p -c id; "
        "grep -E 'Cap|NoNew' /proc/self/status",
    )
    assert "uid=0" not in text and "euid" not in text
    capabilities = [line.split()[1] for line in text.splitlines() if line.startswith("Cap")]
    assert len(capabilities) == 5 and set(capabilities) == {"0" * 16}
    assert "NoNewPrivs:\t1" in text


def test_devices_are_the_harmless_ones(jailed: Any) -> None:
    text = says(jailed, "find /dev -type b -o -type c | sort | xargs -n1 basename | tr '\\n' ' '; cat /dev/mem /dev/kmsg")
    assert set(text.partition("\n")[0].partition("cat:")[0].split()) <= {
        "full",
        "null",
        "ptmx",
        "random",
        "tty",
        "urandom",
        "zero",
        "console",
        "0",
        "1",
        "2",
    }
    assert text.count("No such file") == 2


def test_secrets_of_the_environment_stay_outside(jailed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_TEST_SECRET", "hunter2-of-the-host")
    text = says(jailed, "env; set; cat /proc/*/environ /proc/*/cmdline 2> /dev/null | tr '\\0' '\\n' | grep -i -e 'hunter' -e flywheel")
    assert "hunter2" not in text and "FLYWHEEL" not in text and "VIRTUAL_ENV" not in text and "PYTEST" not in text


def test_no_descriptor_of_the_host_comes_along(jailed: Any, tmp_path: Path) -> None:
    with (tmp_path / "open.txt").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        text = says(jailed, "for p in /proc/[0-9]*; do ls -l $p/fd 2> /dev/null; done")
    assert str(tmp_path) not in text and "socket:" not in text


@pytest.mark.slow
def test_nothing_of_an_episode_is_there_in_the_next(jailed: Any) -> None:
    plant = (
        "echo planted > planted.txt; echo planted > /tmp/planted; echo planted > /dev/shm/planted; export PLANTED=1; mkdir -p .config; "
        "echo 'echo planted' > .bashrc; echo 'echo planted' > .profile; sleep 1000 & nohup sleep 1000 > /dev/null 2>&1 & "
        "setsid sleep 1000 & python3 -m http.server 8125 > /dev/null 2>&1 & ipcmk -M 1000; disown -a"
    )
    assert "[exit code" in says(jailed, plant)

    async def look(tools: Tools) -> None:
        text = await bash(tools, "find / -name '*planted*' -not -path '/proc/*' 2> /dev/null; ls -A . /tmp /dev/shm; env | grep PLANTED")
        text += await bash(tools, "ipcs -m")
        text += await bash(tools, "ps ax -o comm= | sort | uniq -c; pgrep -c sleep")
        assert "planted" not in text and "PLANTED" not in text and "0x" not in text and "http" not in text and "sleep" not in text
        with pytest.raises(ConnectionRefusedError):
            await tools.jail.connect(8125)

    jailed(look)


def test_two_sessions_at_once_do_not_see_each_other() -> None:
    async def whole() -> None:
        one, other = await asyncio.gather(Tools.open(SETTINGS), Tools.open(SETTINGS))
        try:
            await bash(one, "echo mine > mine.txt; echo mine > /tmp/mine; python3 -m http.server 8126 > /dev/null 2>&1 & sleep 0.1")
            await wait_until(one, "curl -s localhost:8126/mine.txt", "mine")
            text = await bash(other, "ls . /tmp; curl -s -m 2 localhost:8126/mine.txt; ps ax | grep -c http.serve[r]")
            assert "mine" not in text and "\n0\n" in f"\n{text}"
            with pytest.raises(ConnectionRefusedError):
                await other.jail.connect(8126)
        finally:
            await asyncio.gather(one.close(), other.close())

    asyncio.run(whole())


def test_processes_run_as_a_user_without_privileges(jailed: Any) -> None:
    """Outside too: where we are root, the jail's user is another one."""

    async def use(tools: Tools) -> None:
        await bash(tools, "sleep 1000 &")
        for process in descendants(tools.jail):
            assert process.uids().real == browser_user().uid
        if os.geteuid() == 0:
            assert browser_user().uid != 0

    jailed(use)


def test_limits_say_what_holds_them(jailed: Any) -> None:
    async def use(tools: Tools) -> None:
        held = tools.jail.held_by
        assert set(held) == {"processes", "memory", "cpus", "cpu_s", "open_files", "workspace", "scratch"} and all(held.values())

    jailed(use)


def test_a_loop_takes_no_more_than_its_share_of_the_processor(jailed: Any) -> None:
    """Two busy loops in a jail of one processor get about one, where a control group holds it."""

    async def use(tools: Tools) -> None:
        if not tools.jail.held_by["cpus"].startswith("cgroup"):
            pytest.skip("no control group for processor time here")
        await bash(tools, "for i in 1 2 3; do while :; do :; done & done")
        processes = descendants(tools.jail)
        began_s, before_s = time.monotonic(), sum(total_s(process) for process in processes)
        await asyncio.sleep(1)
        used_s = sum(total_s(process) for process in processes) - before_s
        assert used_s < 1.3 * (time.monotonic() - began_s)

    jailed(use)


def total_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_a_jail_dies_with_whoever_made_it(end: str, tmp_path: Path) -> None:
    """However that ends."""
    program = tmp_path / "maker.py"
    program.write_text(
        "import asyncio, os, signal, sys\n"
        "from sandbox.terminal.tools import Tools\n"
        "async def main():\n"
        "    tools = await Tools.open()\n"
        "    await tools.terminal.execute('sleep 1000 & setsid sleep 1000 &')\n"
        "    print(tools.jail.pid, flush=True)\n"
        "    sys.stdin.readline()\n"
        f"    {'os.kill(os.getpid(), signal.SIGKILL)' if end == 'kill' else 'os._exit(0)'}\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    maker = subprocess.Popen([sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert maker.stdin is not None and maker.stdout is not None
    top = psutil.Process(int(maker.stdout.readline()))
    inside = [top, *top.children(recursive=True)]
    assert len(inside) >= 4
    maker.communicate("\n", timeout=60)
    _, alive = psutil.wait_procs(inside, timeout=30)
    assert not [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


ORDINARY_PROGRAM = """
import asyncio, os
from sandbox.terminal.jail import Jail
from sandbox.terminal.shell import Terminal

async def main():
    jail = await Jail.start()
    terminal = await Terminal.open(jail)
    jail.workspace.write("given.txt", "given")
    bomb = "python3 -c 'x = [b\\"x\\" * 1048576 for _ in range(3000)]'"
    for command in ("id -u; cat given.txt; echo", "cat /etc/shadow", bomb + "; ulimit -u"):
        print((await terminal.execute(command, wait_s=60)).text)
    print(jail.held_by["memory"])
    await terminal.close()
    await jail.close()

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="whoever is an ordinary user already runs every other test as one")
def test_an_ordinary_user_has_the_same_jail() -> None:
    """Without root, and without control groups: what they would hold is held by resource limits, as far as that goes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        for room in ("sandbox", "warehouse"):
            shutil.copytree(ROOT / room, Path(folder, room), ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run(["/bin/chmod", "-R", "a+rX", folder], check=True)
        ran = subprocess.run(
            ["/usr/bin/python3", "-c", ORDINARY_PROGRAM],
            cwd=folder,
            user=54321,
            group=54321,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=150,
            env={"PYTHONPATH": folder, "PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    assert ran.returncode == 0, ran.stderr
    assert "1000\ngiven\n" in ran.stdout and "No such file" in ran.stdout
    assert ("MemoryError" in ran.stdout or "Killed" in ran.stdout) and "128\n" in ran.stdout
    assert "RLIMIT_AS" in ran.stdout or "cgroup" in ran.stdout


@pytest.mark.slow
def test_control_groups_do_not_pile_up() -> None:
    async def use() -> int:
        most = 0
        for _ in range(12):
            jail = await Jail.start(SMALL)
            await jail.run(["/bin/bash", "-c", "sleep 1000 & sleep 1000 &"])
            await jail.close()
            most = max(most, sum(len(list(each.folder.glob(f"{PREFIX}-{os.getpid()}-*"))) for each in hierarchies()))
        return most

    assert asyncio.run(use()) <= 4 * max(1, len(hierarchies()))
