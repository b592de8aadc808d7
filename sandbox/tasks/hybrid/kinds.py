"""The hybrid tasks: something is read or done in the page, something in the terminal, and one needs what the other gave."""

from __future__ import annotations

from random import Random

from sandbox.actions import Navigate
from sandbox.hybrid.tasks import HybridInstance, PageStep, choose, click, fill, page_of, round_of, send
from sandbox.tasks.data.draw import PEOPLE, code, lines, port, text, things
from sandbox.terminal.tasks import Goal, Holds, Instance, Present, Serves, Step, bash, quoted


def note_code(rng: Random) -> HybridInstance:
    """Read in the page, written by one command."""
    name, secret = things(rng, 1)[0], code(rng, 5)
    goal = Holds(path=f"{name}.txt", text=secret)
    return HybridInstance(
        work=Instance(instruction=f"The page shows a code. Write it into the file {name}.txt.", goals=[goal], steps=[]),
        page=page_of("Code", [round_of([secret])]),
        needs_page=False,
        steps=[bash(f"echo {secret} > {name}.txt", goal)],
    )


def type_word(rng: Random) -> HybridInstance:
    """Read in a file, typed into the page."""
    name, word = things(rng, 2)
    return HybridInstance(
        work=Instance(
            instruction=f"Type the word that is in the file {name}.txt into the field Word, and press Send.",
            files={f"{name}.txt": f"{word}\n"},
            goals=[],
            steps=[],
        ),
        page=page_of("Word", [round_of([], fields={"Word": word})]),
        steps=[bash(f"cat {name}.txt"), *fill(0, word), send()],
    )


def download_and_sum(rng: Random) -> HybridInstance:
    name = things(rng, 1)[0]
    numbers = [rng.randint(1, 500) for _ in range(25)]
    content, total = text([str(number) for number in numbers]), str(sum(numbers))
    path = f"Downloads/{name}.txt"
    return HybridInstance(
        work=Instance(
            instruction=(
                f"Download {name}.txt from the page; it comes into the folder Downloads. Add up its numbers in the terminal, type the sum "
                "into the field Sum, and press Send."
            ),
            goals=[Holds(path=path, text=content)],
            steps=[],
        ),
        page=page_of("Numbers", [round_of([], fields={"Sum": total}, download={"name": f"{name}.txt", "text": content})]),
        steps=[
            click(f"{name}.txt", role="link", goal=Present(path=path)),
            bash(f"awk '{{ sum += $1 }} END {{ print sum }}' {path}"),
            *fill(0, total),
            send(),
        ],
    )


def upload_sorted(rng: Random) -> HybridInstance:
    """Made in the terminal, handed to the page."""
    name, other = things(rng, 2)
    words = things(rng, 12)
    content = text(sorted(words))
    goal = Holds(path=f"{other}.txt", text=content)
    return HybridInstance(
        work=Instance(
            instruction=(
                f"Sort the lines of {name}.txt alphabetically into the file {other}.txt. Upload that file in the page: click on the file "
                f"button, type the name {other}.txt, and press Send."
            ),
            files={f"{name}.txt": text(words)},
            goals=[goal],
            steps=[],
        ),
        page=page_of("Upload", [round_of([], upload={"name": f"{other}.txt", "text": content})]),
        steps=[bash(f"sort {name}.txt > {other}.txt", goal), choose(f"{other}.txt"), send()],
    )


def serve_and_press(rng: Random) -> HybridInstance:
    """A service in the terminal, and a button in what it serves. (A terminal could ask the service without a browser.)"""
    number, names = port(rng), things(rng, 5)
    wanted = rng.choice(names)
    program = (
        "import http.server\nimport pathlib\n\n"
        f"NAMES = {names!r}\n\n\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        pressed = self.path.removeprefix('/press/')\n"
        "        if pressed in NAMES:\n"
        "            pathlib.Path('pressed.txt').write_text(pressed)\n"
        "        buttons = ''.join(f'<p><button onclick=\"location=`/press/{name}`\">{name}</button></p>' for name in NAMES)\n"
        "        body = f'<!DOCTYPE html><title>App</title>{buttons}'.encode()\n"
        "        self.send_response(200)\n"
        "        self.send_header('Content-Type', 'text/html')\n"
        "        self.end_headers()\n"
        "        self.wfile.write(body)\n\n"
        "    def log_message(self, *arguments):\n"
        "        pass\n\n\n"
        f"http.server.ThreadingHTTPServer(('127.0.0.1', {number}), Handler).serve_forever()\n"
    )
    goal = Holds(path="pressed.txt", text=wanted)
    buttons = "".join(f'<p><button onclick="location=`/press/{name}`">{name}</button></p>' for name in names)
    serves: Goal = Serves(port=number, path="/", text=f"<!DOCTYPE html><title>App</title>{buttons}")
    address = f"http://localhost:{number}/"
    return HybridInstance(
        work=Instance(
            instruction=(
                f"Start the service app.py in the terminal, so that it goes on running; it listens on port {number}. Then open {address} "
                f"in the browser and press the button {wanted}."
            ),
            files={"app.py": program},
            goals=[serves, goal],
            steps=[],
        ),
        page=page_of("App", [round_of(["Nothing is to be done on this page."])]),
        needs_page=False,
        steps=[
            bash("python3 app.py > /tmp/app.log 2>&1 & sleep 1", serves),
            PageStep(act=lambda _: Navigate(url=address), done=f"location.port === '{number}'"),
            click(wanted, role="button", done=f"location.pathname === '/press/{wanted}'"),
        ],
    )


def report_log(rng: Random) -> HybridInstance:
    """Three things looked up in a log, typed into a form, and what the page answers written down."""
    entries = [
        f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02} {rng.choice(('ok', 'error', 'late'))} {person} {word}"
        for person, word in zip(rng.choices(PEOPLE, k=50), things(rng, 50), strict=True)
    ]
    entries.append(f"23:59 error {rng.choice(PEOPLE)} closing")
    errors = [entry.split() for entry in entries if entry.split()[1] == "error"]
    fields = {"Errors": str(len(errors)), "First": errors[0][3], "Last": errors[-1][3]}
    receipt = code(rng, 6)
    goal = Holds(path="receipt.txt", text=receipt)
    return HybridInstance(
        work=Instance(
            instruction=(
                "work.log has lines `time state person word`. Fill in the page: into Errors the number of lines whose state is error, into "
                "First and Last the word of the first and of the last of these lines. Press Send, and write the receipt that the page then "
                "shows into receipt.txt."
            ),
            files={"work.log": text(entries)},
            goals=[goal],
            steps=[],
        ),
        page=page_of("Report", [round_of([], fields=fields)], receipt=receipt),
        steps=[
            bash("head -n 3 work.log"),
            bash("grep -c ' error ' work.log"),
            bash("grep ' error ' work.log | sed -n '1p;$p'"),
            *(step for index, value in enumerate(fields.values()) for step in fill(index, value)),
            send(),
            bash(f"echo {receipt} > receipt.txt", goal),
        ],
    )


def exchange(rng: Random) -> HybridInstance:
    """To and fro: each word that the page shows has a number that only a program prints; each number brings the next word."""
    words = things(rng, 3)
    numbers = [str(rng.randint(1000, 9999)) for _ in words]
    others = [f"{word} {rng.randint(1000, 9999)}" for word in things(rng, 30) if word not in words]
    table = text(sorted([*others, *(f"{word} {number}" for word, number in zip(words, numbers, strict=True))]))
    final = code(rng, 6)
    goal = Holds(path="final.txt", text=final)
    rounds = [round_of([word], fields={"Number": number}) for word, number in zip(words, numbers, strict=True)]
    steps: list[Step | PageStep] = []
    for index, (word, number) in enumerate(zip(words, numbers, strict=True)):
        steps += [bash(f"./number.sh {word}"), *fill(0, number, round_number=index), send(round_number=index)]
    return HybridInstance(
        work=Instance(
            instruction=(
                "The page shows a word. Ask the terminal for its number, by ./number.sh WORD, type the number into the page, and press "
                "Send: then the page shows the next word. After the last the page shows a code: write it into final.txt."
            ),
            files={"number.sh": "#!/bin/bash\ngrep \"^$1 \" .numbers | cut -d' ' -f2\n", ".numbers": table},
            modes={"number.sh": 0o755},
            goals=[goal],
            steps=[],
        ),
        page=page_of("Exchange", rounds, receipt=final),
        steps=[*steps, bash(f"echo {final} > final.txt", goal)],
    )


def return_edited(rng: Random) -> HybridInstance:
    """Downloaded, changed in the terminal, and uploaded again."""
    name, old, new = things(rng, 3)
    before = [line.replace(old, "item") for line in lines(rng, 6)]
    before[rng.randrange(6)] += f" {old}"
    after = text([line.replace(old, new) for line in before])
    path = f"Downloads/{name}.txt"
    goal = Holds(path=path, text=after)
    shown = round_of([], upload={"name": f"{name}.txt", "text": after}, download={"name": f"{name}.txt", "text": text(before)})
    return HybridInstance(
        work=Instance(
            instruction=(
                f"Download {name}.txt from the page; it comes into the folder Downloads. Replace the word {old} in it by {new}, and upload "
                f"the file {path} in the page: click on the file button, type that name, and press Send."
            ),
            goals=[goal],
            steps=[],
        ),
        page=page_of("Edit", [shown]),
        steps=[
            click(f"{name}.txt", role="link", goal=Present(path=path)),
            bash(f"sed -i s/{quoted(old)}/{quoted(new)}/ {path}", goal),
            choose(path),
            send(),
        ],
    )
