"""What of a Dockerfile can be done without Docker, in a jail on this machine's /usr: WORKDIR, COPY, RUN without network and rights, and
packages of apt that are installed here. Everything else is refused by name, with what to do about it. Nothing is run here.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from sandbox.terminal.bubblewrap import HOME
from warehouse.core.errors import TaskError

IMAGES = ("debian", "debian:*", "ubuntu", "ubuntu:*", "buildpack-deps", "buildpack-deps:*", "*/debian:*", "*/ubuntu:*")
"""What the jail passes for: this machine's /usr, whatever its release."""
SYSTEM = frozenset(
    [
        "bin",
        "boot",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "logs",
        "proc",
        "run",
        "sbin",
        "solution",
        "sys",
        "tests",
        "tmp",
        "usr",
        "var",
        "workspace",
    ]
)
"""Folders below / that a jail has already, and that no task's files go into."""
SAID = frozenset({"LABEL", "MAINTAINER", "EXPOSE", "CMD", "STOPSIGNAL", "USER"})
"""Instructions that change nothing here: a jail has one user, and starts nothing by itself."""
HARMLESS = frozenset(
    [
        "DEBIAN_FRONTEND",
        "LANG",
        "LC_ALL",
        "PYTHONUNBUFFERED",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONIOENCODING",
        "TZ",
        "TERM",
        "GIT_AUTHOR_NAME",
        "GIT_AUTHOR_EMAIL",
        "GIT_COMMITTER_NAME",
        "GIT_COMMITTER_EMAIL",
    ]
)
"""Variables that make no difference here."""
NETWORK = frozenset(
    {"pip", "pip3", "pipx", "uv", "uvx", "npm", "yarn", "curl", "wget", "cargo", "gem", "go", "conda", "add-apt-repository"}
)
"""Programs of a RUN that want a network."""
APT = re.compile(r"(?:sudo\s+)?apt(?:-get)?\s")
PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What an episode begins with. `links`: places outside of the home folder, by the folder of it that they are."""

    files: Mapping[str, bytes]
    modes: Mapping[str, int]
    folders: Sequence[str]
    links: Mapping[str, str]
    commands: Sequence[str]


@dataclass(slots=True)
class _Steps:
    """What has been read so far."""

    context: Path
    final: PurePosixPath
    workdir: PurePosixPath = field(default_factory=lambda: PurePosixPath("/"))
    files: dict[str, bytes] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    folders: dict[str, None] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)


def built(environment: Path, *, workdir: str | None = None, images: Sequence[str] = ()) -> Built:
    """Of a Harbor task's folder `environment`. `images`: more of them that a jail will do for, as patterns. Raises TaskError for what
    cannot be done without Docker."""
    for name in ("docker-compose.yaml", "docker-compose.yml", ".dockerignore"):
        if (environment / name).exists():
            raise TaskError(f"{environment / name}: only a Dockerfile is read without Docker. Take it away, or run the task with Harbor.")
    path = environment / "Dockerfile"
    if not path.is_file():
        raise TaskError(f"{path} is not there: a task without a Dockerfile is of an image that only Docker has. Write one `FROM debian`.")
    lines = list(_instructions(path))
    steps = _Steps(environment, _final(path, lines, workdir))
    if str(steps.final) != HOME:
        steps.links[str(steps.final)] = HOME
    for number, word, rest in lines:
        where = f"{path}, line {number}: {word} {rest[:80]}"
        try:
            _read(steps, where, word, rest, (*IMAGES, *images))
        except TaskError:
            raise
        except (OSError, ValueError) as error:  # a name that no file can have, such as one too long
            raise TaskError(f"{where}: it cannot be read: {str(error)[:200]}. Correct the line.") from error
    if missing := _not_installed(steps.packages):
        raise TaskError(
            f"{path} installs {', '.join(missing)}: a jail has no network. Install them here: apt-get install {' '.join(missing)}"
        )
    return Built(
        files=steps.files,
        modes=steps.modes,
        folders=tuple(name for name in steps.folders if name),
        links=steps.links,
        commands=tuple(steps.commands),
    )


def _lines(path: Path) -> list[str]:
    """Raises TaskError."""
    try:
        if not path.resolve().is_relative_to(path.parent.resolve()):
            raise TaskError(f"{path} is a link that leads out of the task's folder: copy the file.")
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} is not text: {error}") from error


def _instructions(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line, instruction, arguments) of each, continued lines joined. Raises TaskError for what begins with no word."""
    text, begun = "", 0
    for number, line in enumerate(_lines(path), start=1):
        if line.lstrip().startswith("#"):
            continue
        begun = begun if text else number
        text += line.strip() if not line.rstrip().endswith("\\") else line.strip()[:-1] + " "
        if line.rstrip().endswith("\\") or not text.strip():
            continue
        word, _, rest = text.strip().partition(" ")
        if not word.isalpha():
            raise TaskError(
                f"{path}, line {begun}: {text[:80]!r} is not an instruction. A here-document is not read without Docker: use a file."
            )
        yield begun, word.upper(), rest.strip()
        text = ""
    if text.strip():
        raise TaskError(f"{path}, line {begun}: {text.strip()[:80]!r} goes on after the last line of the file. Take the last \\ away.")


def _final(path: Path, lines: Sequence[tuple[int, str, str]], workdir: str | None) -> PurePosixPath:
    """Where an episode begins. Raises TaskError."""
    final = PurePosixPath("/")
    for _, word, rest in lines:
        final = final / rest if word == "WORKDIR" else final
    final = PurePosixPath(workdir) if workdir else final
    if str(final) != HOME and (not final.is_absolute() or len(final.parts) < 2 or final.parts[1] in SYSTEM or ".." in final.parts):
        raise TaskError(f"{path}: an episode begins in {final}, which a jail shares with this machine. Write `WORKDIR /app`.")
    return final


def _read(steps: _Steps, where: str, word: str, rest: str, images: Sequence[str]) -> None:
    """Raises TaskError."""
    match word:
        case "FROM":
            words = [part for part in rest.split() if not part.startswith("--")]
            if len(words) != 1 or not any(fnmatchcase(words[0], pattern) for pattern in images):
                raise TaskError(
                    f"{where}: without Docker there is this machine's own system, which passes for {', '.join(IMAGES[:4])}, in one stage. "
                    "Write `FROM debian`, or name the image in `images` where this machine has what it has."
                )
        case "WORKDIR":
            steps.workdir = steps.workdir / rest
            steps.folders[_place(steps, where, steps.workdir)] = None
        case "COPY" | "ADD":
            _copy(steps, where, rest)
        case "RUN":
            _run(steps, where, rest)
        case "ENV" | "ARG":
            names = [part.partition("=")[0] for part in shlex.split(rest)] if "=" in rest else rest.split()[:1]
            if strange := [name for name in names if name not in HARMLESS]:
                raise TaskError(f"{where}: a jail's environment is its own, so {', '.join(strange)} cannot be set. Have a file set it.")
        case _ if word not in SAID:
            raise TaskError(f"{where}: {word} is not done without Docker. Leave it out, or run the task with Harbor.")


def _place(steps: _Steps, where: str, path: PurePosixPath) -> str:
    """The path below the home folder that an absolute one is. Raises TaskError."""
    if ".." in path.parts or "$" in str(path):
        raise TaskError(f"{where}: {path} is not a plain path. Write it out.")
    if path.is_relative_to(steps.final):
        return str(path.relative_to(steps.final)).removeprefix(".").lstrip("/")
    if len(path.parts) < 2 or path.parts[1] in SYSTEM or steps.final.parts[1] == path.parts[1]:
        raise TaskError(f"{where}: {path} is outside of what a task may fill in a jail. Put it below {steps.final}.")
    inside = f".{path.parts[1]}"
    steps.links[f"/{path.parts[1]}"] = f"{HOME}/{inside}"
    steps.folders[inside] = None
    return "/".join([inside, *path.parts[2:]])


def _copy(steps: _Steps, where: str, rest: str) -> None:
    """Raises TaskError."""
    words = _listed(rest) or rest.split()
    flags = [word for word in words if word.startswith("--")]
    *sources, target = [word for word in words if not word.startswith("--")] or [""]
    if not sources:
        raise TaskError(f"{where}: expected what to copy, and where to.")
    if wrong := [flag for flag in flags if not flag.startswith(("--chown=", "--chmod="))]:
        raise TaskError(f"{where}: {wrong[0]} is not done without Docker. Copy from the folder environment.")
    if steps.commands:
        raise TaskError(f"{where}: files are copied before anything runs here. Move it before the first RUN.")
    mode = next((int(flag.partition("=")[2], 8) for flag in flags if flag.startswith("--chmod=")), None)
    place = _place(steps, where, steps.workdir / target)
    for source in sources:
        if "://" in source or source.startswith("<<"):
            raise TaskError(f"{where}: {source} is not a file of the folder environment.")
        found = _found(steps.context, where, source)
        for path in found:
            _add(steps, path, place, is_folder=target.endswith(("/", ".")) or len(sources) + len(found) > 2, mode=mode)


def _found(context: Path, where: str, source: str) -> list[Path]:
    """Raises TaskError."""
    pattern = source.lstrip("/").removeprefix("./")
    found = [context] if pattern in ("", ".") else sorted(context.glob(pattern))
    if not found or any(not path.resolve().is_relative_to(context.resolve()) for path in found):
        raise TaskError(f"{where}: the folder environment has no {source}.")
    return found


def _add(steps: _Steps, path: Path, place: str, *, is_folder: bool, mode: int | None) -> None:
    """A folder's content, or a file."""
    if path.is_dir():
        members = [(each, f"{place}/{each.relative_to(path).as_posix()}") for each in sorted(path.rglob("*"))]
    else:
        members = [(path, f"{place}/{path.name}" if is_folder or place in steps.folders else place)]
    for each, name in members:
        name = name.lstrip("/")
        if each.is_symlink() or not each.resolve().is_relative_to(steps.context.resolve()):
            raise TaskError(f"{each} is a link: copy what it leads to.")
        if each.is_dir():
            steps.folders[name] = None
        elif each != steps.context / "Dockerfile":
            steps.files[name] = each.read_bytes()
            steps.modes[name] = mode if mode is not None else each.stat().st_mode & 0o777


def _run(steps: _Steps, where: str, rest: str) -> None:
    """Raises TaskError."""
    if rest.startswith(("--", "<<")):
        raise TaskError(f"{where}: what RUN begins with is not done without Docker. Write a plain command.")
    words = _listed(rest)
    text = rest if words is None else shlex.join(words)
    kept = []
    for part in _parts(text):
        first = part.split()[0] if part.split() else ""
        if APT.match(f"{part} "):
            steps.packages += _installed_by(part)
        elif first in NETWORK:
            raise TaskError(f"{where}: {first} wants a network, and a jail has none. Install it on this machine, from Debian's packages.")
        elif not part.startswith("rm -rf /var/lib/apt/lists"):
            kept.append(part)
    if kept:
        folder = _place(steps, where, steps.workdir) if str(steps.workdir) != "/" else ""
        steps.commands.append(f": {shlex.quote(where)}; cd {shlex.quote(f'{HOME}/{folder}')} && {' && '.join(kept)}")


def _listed(rest: str) -> list[str] | None:
    """A list of words in JSON; None where it is not one, which Docker takes as a line of a shell."""
    try:
        words = json.loads(rest) if rest.startswith("[") else None
    except ValueError:
        return None
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def _parts(text: str) -> list[str]:
    """A command's parts between `&&`; itself where one of these is inside quotes."""
    parts = [part.strip() for part in text.split("&&")]
    try:
        for part in parts:
            shlex.split(part)
    except ValueError:
        return [text]
    return parts


def _installed_by(part: str) -> list[str]:
    words = shlex.split(part)
    if "install" not in words:
        return []
    return [word.partition("=")[0] for word in words[words.index("install") + 1 :] if PACKAGE.fullmatch(word.partition("=")[0])]


def _not_installed(packages: Sequence[str]) -> list[str]:
    """Those that this machine does not have."""
    if not packages:
        return []
    try:
        asked = ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n", *packages]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False).stdout
    except FileNotFoundError:  # no Debian
        return list(packages)
    there = {line.split()[0] for line in said.splitlines() if line.endswith(" installed")}
    return [name for name in packages if name not in there]
