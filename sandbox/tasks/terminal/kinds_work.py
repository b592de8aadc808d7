"""Tasks of a programmer's day: a broken script or setting, a repository, a service that must answer. Programs that the agent repairs are
run by the verifier on input that the agent has not seen.
"""

from __future__ import annotations

import json
from random import Random

from sandbox.tasks.data.draw import PEOPLE, code, port, text, things
from sandbox.terminal.tasks import Absent, Goal, Holds, Instance, Prints, Serves, bash, edit, quoted

GIT = "GIT_CONFIG_GLOBAL=/dev/null git -C project"
"""The verifier's git reads no settings of the agent's home folder."""


def fix_script(rng: Random) -> Instance:
    """One of several faults in a short program."""
    good = (
        "import sys\n\n\ndef average(numbers):\n    return sum(numbers) / len(numbers)\n\n\n"
        "def main():\n    numbers = [int(line) for line in sys.stdin if line.strip()]\n"
        "    print(f'{max(numbers)} {average(numbers):.2f}')\n\n\nmain()\n"
    )
    right, wrong = rng.choice(
        (
            ("return sum(numbers) / len(numbers)", "return sum(numbers) / (len(numbers) - 1)"),
            ("[int(line) for line", "[int(line) fro line"),
            ("max(numbers)}", "min(numbers)}"),
            (" if line.strip()", ""),
            ("import sys\n", "import sus\n"),
        )
    )
    seen, unseen = ([rng.randint(1, 900) for _ in range(rng.randint(4, 9))] for _ in range(2))
    # A blank line between the numbers is what the fourth fault stumbles over.
    given = "\\n\\n".join(map(str, unseen))
    goal = Prints(
        command=f"printf '{given}\\n' | timeout 10 /usr/bin/python3 -I stats.py", text=f"{max(unseen)} {sum(unseen) / len(unseen):.2f}"
    )
    return Instance(
        instruction=(
            "stats.py should read numbers, one a line, from standard input, skip blank lines, and print the greatest of them and their "
            "average with two digits after the point: for 1, 2 and 6 it prints `6 3.00`. It has a fault. Mend it. "
            "numbers.txt is there to try it with."
        ),
        files={"stats.py": good.replace(right, wrong), "numbers.txt": "\n\n".join(map(str, seen)) + "\n"},
        goals=[goal],
        steps=[
            edit(command="view", path="stats.py"),
            bash("python3 stats.py < numbers.txt"),
            edit(goal, command="str_replace", path="stats.py", old_str=wrong, new_str=right)
            if wrong
            else edit(goal, command="str_replace", path="stats.py", old_str="in sys.stdin]", new_str="in sys.stdin if line.strip()]"),
        ],
    )


def fix_settings(rng: Random) -> Instance:
    """JSON that does not parse, and a value to change in it."""
    names = things(rng, 4)
    settings = {name: rng.randint(1, 99) for name in names}
    changed, value = rng.choice(names), rng.randint(100, 999)
    whole = json.dumps(settings, indent=2)
    broken = rng.choice((whole.replace("}", ""), whole.replace(",\n", "\n", 1), whole.replace('"', "", 1)))
    wanted = json.dumps(settings | {changed: value}, sort_keys=True)
    shown = "/usr/bin/python3 -Ic 'import json; print(json.dumps(json.load(open(\"settings.json\")), sort_keys=True))'"
    goal = Prints(command=shown, text=wanted)
    repaired = json.dumps(settings | {changed: value}, indent=2)
    return Instance(
        instruction=(
            f"settings.json is not valid JSON any more: something was lost at one place. Mend it, and set {changed} to {value}; the other "
            f"three, of {', '.join(sorted(names))}, keep their values."
        ),
        files={"settings.json": broken},
        goals=[goal],
        steps=[
            bash("cat settings.json"),
            bash(f"echo {quoted(repaired)} > settings.json", goal),
            bash("python3 -m json.tool settings.json"),
        ],
    )


def commit_change(rng: Random) -> Instance:
    name, other, branch, word = things(rng, 4)
    person = rng.choice(PEOPLE)
    message = f"Add {word}"
    goals: list[Goal] = [
        Prints(command=f"{GIT} rev-parse --abbrev-ref HEAD", text=branch),
        Prints(command=f"{GIT} log -1 --format=%s", text=message),
        Prints(command=f"{GIT} show HEAD:{name}.txt", text=text([other, word])),
        Prints(command=f"{GIT} log --format=%s main", text=f"Begin, says {person}"),
        Prints(command=f"{GIT} status --porcelain", text=""),
    ]
    return Instance(
        instruction=(
            f"The folder project is a git repository. Make a branch named {branch}, add the line {word} at the end of {name}.txt, and "
            f"commit that there with the message: {message}"
        ),
        files={f"project/{name}.txt": f"{other}\n"},
        commands=[f"cd project && git init -q && git add . && git commit -qm 'Begin, says {person}'"],
        goals=goals,
        steps=[
            bash("git -C project status"),
            bash(f"git -C project checkout -q -b {branch}", goals[0]),
            bash(f"echo {word} >> project/{name}.txt", Holds(path=f"project/{name}.txt", text=text([other, word]))),
            bash(f"git -C project commit -qam '{message}'", goals[1]),
        ],
    )


def recover_version(rng: Random) -> Instance:
    """A value that an earlier commit still had."""
    name, *words = things(rng, 5)
    secrets = [code(rng) for _ in words]
    wanted = rng.randrange(len(words) - 1)
    commits = " && ".join(
        f"echo {secret} > {name}.txt && git add . && git commit -qm 'Token for {word}'" for word, secret in zip(words, secrets, strict=True)
    )
    goal = Holds(path="token.txt", text=secrets[wanted])
    newest = Prints(command=f"{GIT} show HEAD:{name}.txt", text=secrets[-1])
    return Instance(
        instruction=(
            f"The folder project is a git repository whose file {name}.txt held another token in each commit. Write the token of the "
            f"commit `Token for {words[wanted]}` into token.txt here, beside the folder project. Do not change the repository."
        ),
        folders=["project"],
        commands=[f"cd project && git init -q && {commits}"],
        goals=[goal, newest, Prints(command=f"{GIT} rev-list --count HEAD", text=str(len(words)))],
        steps=[
            bash("git -C project log --oneline"),
            bash(f"git -C project show 'HEAD~{len(words) - 1 - wanted}:{name}.txt'"),
            bash(f"echo {secrets[wanted]} > token.txt", goal),
        ],
    )


def run_service(rng: Random) -> Instance:
    """Something has to go on answering after the command that started it."""
    folder, name = things(rng, 2)
    number, secret = port(rng), code(rng)
    goal = Serves(port=number, path=f"/{name}.txt", text=secret)
    started = f"python3 -m http.server {number} --directory {folder} > /tmp/server.log 2>&1 &"
    return Instance(
        instruction=(
            f"Serve the files of the folder {folder} over HTTP on port {number}, so that http://localhost:{number}/{name}.txt gives "
            "what is in that file. The service must go on running."
        ),
        files={f"{folder}/{name}.txt": f"{secret}\n"},
        goals=[goal],
        steps=[bash(f"{started} sleep 1", goal), bash(f"curl -s http://localhost:{number}/{name}.txt")],
    )


def repair_service(rng: Random) -> Instance:
    """A program that starts, fails, and leaves the reason in a log."""
    name, other = things(rng, 2)
    number, secret = port(rng), code(rng)
    program = (
        "import http.server\nimport json\nimport pathlib\n\n"
        f"settings = json.loads(pathlib.Path('{name}.json').read_text())\n\n\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200 if self.path == '/status' else 404)\n"
        "        self.end_headers()\n"
        "        self.wfile.write(settings['token'].encode())\n\n\n"
        "http.server.HTTPServer(('127.0.0.1', settings['port']), Handler).serve_forever()\n"
    )
    goal = Serves(port=number, path="/status", text=secret)
    settings = json.dumps({"port": number, "token": secret})
    return Instance(
        instruction=(
            f"service.py should answer http://localhost:{number}/status with the token {secret}, but it does not start: its settings "
            "file has the wrong name, the wrong port and the wrong token. See what service.py expects, make it right, start it, and leave "
            "it running."
        ),
        files={"service.py": program, f"{other}.json": json.dumps({"port": number + 1, "token": code(rng)})},
        goals=[goal, Absent(path=f"{other}.json")],
        steps=[
            bash("cat service.py; ls"),
            bash(f"cat {other}.json"),
            bash(f"mv {other}.json {name}.json", Absent(path=f"{other}.json")),
            bash(f"echo {quoted(settings)} > {name}.json", Holds(path=f"{name}.json", text=settings)),
            bash("python3 service.py > /tmp/service.log 2>&1 & sleep 1", goal),
            bash(f"curl -s http://localhost:{number}/status"),
        ],
    )


def write_program(rng: Random) -> Instance:
    """A small program after a description; only what it does counts."""
    (kept,) = things(rng, 1)
    unseen = [(name, rng.randint(0, 40)) for name in rng.sample(PEOPLE, 5)]
    best = max(points for _, points in unseen)
    winners = sorted(name for name, points in unseen if points == best)
    given = "\\n".join(f"{name} {points}" for name, points in unseen)
    goal = Prints(command=f"printf '{given}\\n' | timeout 10 /usr/bin/python3 -I {kept}.py", text="\n".join(winners))
    program = (
        "import sys\n"
        "rows = [line.split() for line in sys.stdin if line.strip()]\n"
        "best = max(int(points) for _, points in rows)\n"
        "print(*sorted(name for name, points in rows if int(points) == best), sep='\\n')\n"
    )
    return Instance(
        instruction=(
            f"Write a Python program {kept}.py. It reads lines of the form `NAME POINTS` from standard input and prints the names of all "
            "who have the most points, one a line, in alphabetical order."
        ),
        goals=[goal],
        steps=[edit(command="create", path=f"{kept}.py", file_text=program, goal=goal)],
    )
