"""Tasks with text, tables, archives and trees of files: counting, summing, finding, moving, renaming, packing, permissions."""

from __future__ import annotations

from random import Random

from sandbox.tasks.data.archives import archive
from sandbox.tasks.data.draw import PEOPLE, PLACES, code, lines, text, things
from sandbox.terminal.search import Document
from sandbox.terminal.tasks import Absent, Folder, Holds, Instance, Mode, Names, Prints, bash, call, edit, python

LEVELS = ("INFO", "DEBUG", "WARN", "ERROR")


def count_matching(rng: Random) -> Instance:
    """The level's name is in other lines too, as part of what they say."""
    level = rng.choice(("WARN", "ERROR"))
    entries = [f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02} {rng.choice(LEVELS)} {' '.join(things(rng, 2))}" for _ in range(60)]
    entries += [f"12:{rng.randint(0, 59):02} INFO no {level} from {word}" for word in things(rng, rng.randint(2, 5))]
    rng.shuffle(entries)
    num = sum(entry.split(" ")[1] == level for entry in entries)
    goal = Holds(path="count.txt", text=str(num))
    return Instance(
        instruction=(
            f"server.log has lines of the form `time LEVEL message`. Write how many of them have the level {level} into count.txt. "
            "A message may hold the name of a level too; that does not count."
        ),
        files={"server.log": text(entries)},
        goals=[goal],
        steps=[bash("head -n 5 server.log"), bash(f"grep -c '^[0-9:]* {level} ' server.log > count.txt", goal)],
    )


def sum_column(rng: Random) -> Instance:
    place, other = rng.sample(PLACES, 2)
    rows = [(rng.choice(PEOPLE), rng.choice((place, other, *PLACES[:3])), rng.randint(1, 400)) for _ in range(40)]
    total = sum(amount for _, town, amount in rows if town == place)
    goal = Holds(path="total.txt", text=str(total))
    table = text(["name,town,amount", *(f"{name},{town},{amount}" for name, town, amount in rows)])
    program = (
        "import csv\n"
        f"total = sum(int(row['amount']) for row in csv.DictReader(open('sales.csv')) if row['town'] == '{place}')\n"
        "print(total, file=open('total.txt', 'w'), flush=True)\n"
        "total"
    )
    return Instance(
        instruction=f"sales.csv is a table. Add up the column amount of all rows whose town is {place}, and write the sum into total.txt.",
        files={"sales.csv": table},
        goals=[goal],
        steps=[bash("head -n 3 sales.csv"), python(program, goal)],
    )


def gather_files(rng: Random) -> Instance:
    """Files of one ending, spread over a tree, into one folder; the others stay."""
    folders = [f"{a}/{b}" for a in things(rng, 3) for b in things(rng, 2)]
    wanted = {f"{name}.log": rng.choice(folders) for name in things(rng, rng.randint(4, 6))}
    kept = {f"{rng.choice(folders)}/{name}.txt": name for name in things(rng, 5)}
    goal = Names(path="logs", names=frozenset(wanted))
    gone = [Absent(path=f"{folder}/{name}") for name, folder in wanted.items()]
    return Instance(
        instruction="Move every file that ends in .log, in whatever folder below here, into a new folder logs. Leave all other files.",
        files={f"{folder}/{name}": f"log of {name}\n" for name, folder in wanted.items()} | kept,
        goals=[
            goal,
            *gone,
            *(Holds(path=f"logs/{name}", text=f"log of {name}") for name in wanted),
            *(Holds(path=path, text=word) for path, word in kept.items()),
        ],
        steps=[
            bash("find . -name '*.log'"),
            bash("mkdir -p logs", Folder(path="logs")),
            bash("find . -name '*.log' -not -path './logs/*' -exec mv {} logs \\;", goal),
        ],
    )


def rename_by_pattern(rng: Random) -> Instance:
    old, new = things(rng, 2)
    numbers = sorted(rng.sample(range(1, 99), rng.randint(5, 8)))
    goal = Names(path="photos", names=frozenset(f"{new}-{number:03}.jpg" for number in numbers))
    command = f'cd photos && for f in {old}_*.jpg; do n=${{f#{old}_}}; mv "$f" "{new}-$(printf %03d "${{n%.jpg}}").jpg"; done; cd'
    return Instance(
        instruction=(
            f"The files in the folder photos are named {old}_NUMBER.jpg. Rename each to {new}-NUMBER.jpg, with the number written "
            f"with three digits: {old}_7.jpg becomes {new}-007.jpg."
        ),
        files={f"photos/{old}_{number}.jpg": f"picture {number}" for number in numbers},
        goals=[goal, *(Holds(path=f"photos/{new}-{number:03}.jpg", text=f"picture {number}") for number in numbers)],
        steps=[bash("ls photos"), bash(command, goal)],
    )


def sort_unique(rng: Random) -> Instance:
    words = things(rng, rng.randint(8, 14))
    many = words + rng.choices(words, k=20)
    rng.shuffle(many)
    goal = Holds(path="words.txt", text=text(sorted(words)))
    return Instance(
        instruction="Write every word of raw.txt (one a line) into words.txt, each once, in alphabetical order.",
        files={"raw.txt": text(many)},
        goals=[goal],
        steps=[bash("sort -u raw.txt > words.txt", goal)],
    )


def pack_folder(rng: Random) -> Instance:
    folder, *names = things(rng, 4)
    files = {f"{folder}/{name}.txt": " ".join(things(rng, 4)) for name in names}
    archive = f"{folder}.tar.gz"
    listed = text(sorted(files))
    shown = Prints(command=f"tar -tzf {archive} | grep -v '/$' | sed 's|^[.]/||' | sort", text=listed)
    contents = [Prints(command=f"tar -xzOf {archive} --wildcards '*{path}'", text=content) for path, content in sorted(files.items())]
    return Instance(
        instruction=f"Pack the folder {folder}, with all that is in it, into the archive {archive}, and then remove the folder.",
        files=files,
        goals=[shown, *contents, Absent(path=folder)],
        steps=[bash(f"tar -czf {archive} {folder}", shown), bash(f"rm -r {folder}", Absent(path=folder))],
    )


def unpack_and_find(rng: Random) -> Instance:
    names = things(rng, 6)
    secret = code(rng)
    files = {f"{name}/note.txt": f"nothing about {other} here\n" for name, other in zip(names, things(rng, 6), strict=True)}
    keeper = rng.choice(names)
    files[f"{keeper}/note.txt"] = f"the code is {secret}\n"
    goal = Holds(path="code.txt", text=secret)
    return Instance(
        instruction="One of the notes in bundle.tar.gz tells a code. Write the code, and nothing else, into code.txt.",
        files={"bundle.tar.gz": archive(files)},
        goals=[goal],
        steps=[
            bash("tar -xzf bundle.tar.gz", Holds(path=f"{keeper}/note.txt", text=files[f"{keeper}/note.txt"])),
            bash("grep -r 'the code is' ."),
            bash(f"echo {secret} > code.txt", goal),
        ],
    )


def set_permissions(rng: Random) -> Instance:
    private, shared, tool = things(rng, 3)
    modes = {f"{private}.key": 0o600, f"{shared}.txt": 0o644, f"{tool}.sh": 0o755}
    goals = [Mode(path=path, mode=mode) for path, mode in modes.items()]
    return Instance(
        instruction=(
            f"Set the permissions: {private}.key can be read and written by its owner and used by nobody else; {shared}.txt can be read by "
            f"everyone and written by its owner; {tool}.sh can be read and run by everyone and written by its owner."
        ),
        files=dict.fromkeys(modes, "x\n"),
        modes=dict.fromkeys(modes, 0o666),
        goals=goals,
        steps=[bash(f"chmod {mode:o} {path}", goal) for (path, mode), goal in zip(modes.items(), goals, strict=True)],
    )


def compare_lists(rng: Random) -> Instance:
    everyone = things(rng, 24)
    before, after = everyone[:18], everyone[5:]
    rng.shuffle(after)
    goals = [
        Holds(path="gone.txt", text=text(sorted(set(before) - set(after)))),
        Holds(path="new.txt", text=text(sorted(set(after) - set(before)))),
    ]
    return Instance(
        instruction=(
            "before.txt and after.txt are lists of words, one a line. Write the words that only before.txt has into gone.txt, and those "
            "that only after.txt has into new.txt, each in alphabetical order."
        ),
        files={"before.txt": text(before), "after.txt": text(after)},
        goals=goals,
        steps=[
            bash("comm -23 <(sort before.txt) <(sort after.txt) > gone.txt", goals[0]),
            bash("comm -13 <(sort before.txt) <(sort after.txt) > new.txt", goals[1]),
        ],
    )


def edit_passage(rng: Random) -> Instance:
    """One line of several alike is to be changed: for the file tool, which wants text that is there once."""
    sections = things(rng, 4)
    changed = rng.choice(sections)
    new = rng.randint(100, 999)
    limits = {name: rng.randint(10, 99) for name in sections}
    goal = Holds(path="limits.ini", text=_settings(limits | {changed: new}))
    return Instance(
        instruction=f"In limits.ini, set max of the section {changed} to {new}. Leave everything else as it is.",
        files={"limits.ini": _settings(limits)},
        goals=[goal],
        steps=[
            edit(command="view", path="limits.ini"),
            edit(
                goal,
                command="str_replace",
                path="limits.ini",
                old_str=f"[{changed}]\nmax = {limits[changed]}\n",
                new_str=f"[{changed}]\nmax = {new}\n",
            ),
        ],
    )


def look_up(rng: Random) -> Instance:
    """The answer is in a library that only Search and LinkReader reach."""
    towns = rng.sample(PLACES, 6)
    founded = {town: rng.randint(1100, 1900) for town in towns}
    asked = rng.choice(towns)
    documents = {
        f"library:///towns/{town.lower()}.txt": Document(
            title=f"The town of {town}",
            text=f"{town} lies between {rng.choice(PLACES)} and the sea.\nIts market sells {' and '.join(things(rng, 2))}.\n"
            f"It was founded in {founded[town]} by {rng.choice(PEOPLE)}.\n{' '.join(lines(rng, 2))}",
        )
        for town in towns
    }
    goal = Holds(path="year.txt", text=str(founded[asked]))
    return Instance(
        instruction=f"Find out, with Search and LinkReader, in which year the town {asked} was founded; write the year into year.txt.",
        documents=documents,
        goals=[goal],
        steps=[
            call("Search", query=f"town of {asked} founded"),
            call("LinkReader", url=f"library:///towns/{asked.lower()}.txt", description="the year it was founded"),
            bash(f"echo {founded[asked]} > year.txt", goal),
        ],
    )


def _settings(limits: dict[str, int]) -> str:
    return "\n".join(f"[{name}]\nmax = {limit}\nmin = 0\n" for name, limit in limits.items())
