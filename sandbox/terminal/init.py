"""Process 1 of a jail. It runs inside, under the system's Python and its standard library alone; the host passes this file as text.

It starts programs, makes sockets, sends signals, each when asked over the one socket it was given, and reaps what dies. Whatever runs in
the jail descends from it and so inherits every restriction. Being process 1, it cannot be killed from inside; nor traced (it is not
dumpable). When it ends, the kernel ends everything else in the jail. The host's side is jail.py.

The first message is a number: how many MiB each process may address, -1 where a control group counts memory. Every other is fields joined
by NUL, with file descriptors beside it: id, operation, arguments. Answers: id, "ok" or "error", a text.
Unasked: "0", "exit", process id, status (negative: the signal that ended it).
"""

from __future__ import annotations

import _signal  # these two are what signal and socket are made of: importing those whole takes longer than all the rest of a start
import _socket
import ctypes
import fcntl
import os
import resource
import select
import sys
import termios

PR_SET_DUMPABLE = 4
MAX_MESSAGE_BYTES = 1 << 18
FIRST_EXTRA_FD = 250
LIBC = ctypes.CDLL(None)
CHILDREN: set[int] = set()
"""What was started here and has not ended; what else is reaped was left behind by these."""
IGNORED = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGTSTP, _signal.SIGPIPE)
INT_BYTES = 4


def spawn(arguments: list[str], fds: list[int]) -> tuple[str, list[int]]:
    """Start a program: working directory, "tty" or "pipe", number of arguments, those, then NAME=VALUE; a pipe's standard input, output
    and error are the first three descriptors. Those beyond become 250, 251 …. Gives the process id and a terminal's other end."""
    cwd, mode, num_args = arguments[0], arguments[1], int(arguments[2])
    argv = arguments[3 : 3 + num_args]
    environment = dict(entry.split("=", 1) for entry in arguments[3 + num_args :])
    master = -1
    if mode == "tty":
        master, slave = os.openpty()
        quiet(slave)
        standard, extra = [slave, slave, slave], list(fds)
        fds.append(slave)
    else:
        standard, extra = fds[:3], fds[3:]
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become(argv, environment, cwd, [*standard, *extra], writing, has_tty=mode == "tty")
        except BaseException as error:
            os.write(writing, str(error).encode()[:4000])
        finally:
            os._exit(127)
    os.close(writing)
    problem = os.read(reading, 4096).decode(errors="replace")
    os.close(reading)
    if problem:
        if master >= 0:
            os.close(master)
        raise OSError(problem)
    CHILDREN.add(pid)
    return str(pid), [master] if master >= 0 else []


def quiet(slave: int) -> None:
    """A terminal that echoes nothing, leaves line ends alone, and keeps what was printed when a program is interrupted."""
    attributes = termios.tcgetattr(slave)
    attributes[1] &= ~termios.OPOST
    attributes[3] = (attributes[3] | termios.NOFLSH) & ~(termios.ECHO | termios.ECHOE | termios.ECHOK | termios.ECHOCTL)
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, (40).to_bytes(2, sys.byteorder) + (120).to_bytes(2, sys.byteorder) + bytes(4))


def become(argv: list[str], environment: dict[str, str], cwd: str, fds: list[int], keep: int, *, has_tty: bool) -> None:
    """In the child: put everything in its place and turn into the program."""
    os.setsid()
    if has_tty:
        fcntl.ioctl(fds[0], termios.TIOCSCTTY, 0)
    for signum in (*IGNORED, _signal.SIGCHLD):
        _signal.signal(signum, _signal.SIG_DFL)
    for target, fd in zip((0, 1, 2, *range(FIRST_EXTRA_FD, FIRST_EXTRA_FD + 16)), fds, strict=False):
        os.dup2(fd, target, inheritable=True)
    os.closerange(3, keep)
    os.closerange(keep + 1, FIRST_EXTRA_FD)
    LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # without it the next file is not ours to write
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # when memory runs out, anything goes before process 1
    try:
        os.chdir(cwd)
    except OSError:  # the agent lets nobody in, and must not keep a shell from starting by that
        os.chdir("/")
    os.execve(argv[0], list(argv), environment)


def make_socket(arguments: list[str], fds: list[int]) -> tuple[str, list[int]]:
    """A TCP socket of the jail's network, for the host to connect to a service in here."""
    made = _socket.socket(_socket.AF_INET6 if arguments[0] == "6" else _socket.AF_INET, _socket.SOCK_STREAM)
    return "", [made.detach()]


def send_signal(arguments: list[str], fds: list[int]) -> tuple[str, list[int]]:
    """To a process ("process"), its whole session ("session"), what runs in the foreground of its terminal ("foreground"), or "all"."""
    whom, leader, signum = arguments[0], int(arguments[1]), int(arguments[2])
    hit = 0
    if whom == "all" and signum:
        try:
            os.kill(-1, signum)  # at once, so that nothing is born meanwhile; process 1 is left out
        except ProcessLookupError:
            return "0", []
    group = stat_fields(leader)[5] if whom == "foreground" else -1
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and int(name) != 1:
                fields = stat_fields(int(name))
                hits = {"process": int(name) == leader, "foreground": fields[2] == group, "session": fields[3] == leader, "all": True}
                if hits[whom]:
                    os.kill(int(name), signum)
                    hit += 1
        except (OSError, IndexError):
            continue  # gone meanwhile
    return str(hit), []


def stat_fields(pid: int) -> list[int]:
    """Of /proc/PID/stat after the name: [0, parent, group, session, terminal, its foreground group]."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return [0, *map(int, file.read().rpartition(b")")[2].split()[1:6])]


OPERATIONS = {"spawn": spawn, "socket": make_socket, "signal": send_signal}


def send(control: _socket.socket, message: bytes, fds: list[int]) -> None:
    packed = b"".join(fd.to_bytes(INT_BYTES, sys.byteorder) for fd in fds)
    control.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)] if fds else [])


def receive(control: _socket.socket) -> tuple[bytes, list[int]]:
    message, ancillary, _, _ = control.recvmsg(MAX_MESSAGE_BYTES, _socket.CMSG_SPACE(16 * INT_BYTES), _socket.MSG_CMSG_CLOEXEC)
    packed = b"".join(data for _, _, data in ancillary)
    return message, [int.from_bytes(packed[at : at + INT_BYTES], sys.byteorder) for at in range(0, len(packed), INT_BYTES)]


def answer(control: _socket.socket, message: bytes, fds: list[int]) -> None:
    number, operation, *arguments = message.decode(errors="surrogateescape").split("\0")
    given: list[int] = []
    try:
        text, given = OPERATIONS[operation](arguments, fds)
        reply = [number, "ok", text]
    except Exception as error:
        reply = [number, "error", f"{type(error).__name__}: {error}"]
    send(control, "\0".join(reply).encode(errors="replace"), given)
    for fd in [*fds, *given]:
        os.close(fd)


def reap(control: _socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in CHILDREN:
            CHILDREN.remove(pid)
            control.send(f"0\0exit\0{pid}\0{os.waitstatus_to_exitcode(status)}".encode())


def main(control_fd: int, num_processes: int, open_files: int, cpu_s: int) -> None:
    for limit, value in (
        (resource.RLIMIT_NPROC, num_processes),
        (resource.RLIMIT_NOFILE, open_files),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cpu_s),
    ):
        hard = resource.getrlimit(limit)[1]
        lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)  # nobody may ask for more than the host's hard limit
        resource.setrlimit(limit, (lowered, lowered))
    for signum in IGNORED:
        _signal.signal(signum, _signal.SIG_IGN)
    os.closerange(3, control_fd)
    os.closerange(control_fd + 1, FIRST_EXTRA_FD)
    control = _socket.socket(fileno=control_fd)
    os.set_inheritable(control_fd, False)
    address_mib = int(control.recv(MAX_MESSAGE_BYTES))
    if address_mib >= 0:
        resource.setrlimit(resource.RLIMIT_AS, (address_mib << 20, address_mib << 20))
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    os.set_blocking(woken, False)
    _signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    _signal.signal(_signal.SIGCHLD, lambda *_: None)
    LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    workspace = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    send(control, b"0\0ready", [workspace])
    os.close(workspace)
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    waiting.register(woken, select.POLLIN)
    while True:
        ready = {fd for fd, _ in waiting.poll()}
        if woken in ready:
            os.read(woken, 4096)
            reap(control)
        if control_fd in ready:
            message, fds = receive(control)
            if not message:
                return  # the host is gone
            answer(control, message, fds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
