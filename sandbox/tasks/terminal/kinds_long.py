"""Tasks of eight to fifteen steps, in which something that was printed early is needed late: for memory beyond the last few steps."""

from __future__ import annotations

from random import Random

from sandbox.tasks.data.draw import PEOPLE, PLACES, code, port, text, things
from sandbox.terminal.tasks import Answers, Executable, Goal, Holds, Instance, Serves, Step, bash, quoted


def vanishing_notes(rng: Random) -> Instance:
    """Every note can be read once: reading it is a program that removes itself. Its piece has to be remembered."""
    people = rng.sample(PEOPLE, 8)
    pieces = [code(rng, 3) for _ in people]
    scripts = {
        f"{name.lower()}.sh": f'#!/bin/bash\necho "{name} says: {piece}"\nrm -- "$0"\n' for name, piece in zip(people, pieces, strict=True)
    }
    goal = Holds(path="all.txt", text=text(pieces))
    return Instance(
        instruction=(
            f"Eight people left a piece of a code each: run ./NAME.sh for {', '.join(name.lower() for name in people)}, one after the "
            "other. Each script prints its piece and then removes itself, and must be left as it is. At the end write the eight pieces, in "
            "this order and one a line, into all.txt."
        ),
        files=scripts,
        modes=dict.fromkeys(scripts, 0o755),
        goals=[goal],
        steps=[*(bash(f"./{name.lower()}.sh") for name in people), bash(f"printf '%s\\n' {' '.join(pieces)} > all.txt", goal)],
    )


def words_said_once(rng: Random) -> Instance:
    """The same for policies that are still small: six words, each printed once, in one line at the end."""
    drawn = things(rng, 12)
    names, words = drawn[:6], drawn[6:]
    scripts = {f"{name}.sh": f'#!/bin/bash\necho {word}\nrm -- "$0"\n' for name, word in zip(names, words, strict=True)}
    goal = Holds(path="all.txt", text=" ".join(words))
    return Instance(
        instruction=(
            f"Run {', '.join(f'./{name}.sh' for name in names)}. Each says a word and is gone. "
            "Write the six words in this order into all.txt, in one line."
        ),
        files=scripts,
        modes=dict.fromkeys(scripts, 0o755),
        goals=[goal],
        steps=[*(bash(f"./{name}.sh") for name in names), bash(f"echo {' '.join(words)} > all.txt", goal)],
    )


def first_word_said(rng: Random) -> Instance:
    """The same to the smallest of policies: six words, each printed once, of which the first is asked for at the end."""
    words = things(rng, 6)
    scripts = {f"{number}.sh": f'#!/bin/bash\necho {word}\nrm -- "$0"\n' for number, word in enumerate(words, start=1)}
    return Instance(
        instruction="Run ./1.sh to ./6.sh in turn. Each says a word and is gone. Which word did the first say? Answer with it.",
        files=scripts,
        modes=dict.fromkeys(scripts, 0o755),
        goals=[Answers(text=words[0])],
        steps=[bash(f"./{number}.sh") for number in range(1, 7)],
        answer=words[0],
    )


def treasure_hunt(rng: Random) -> Instance:
    """Each place names the next and gives a number; the sum of all is asked."""
    names = things(rng, rng.randint(8, 11))
    numbers = [rng.randint(2, 99) for _ in names]
    files = {
        f"{name}/clue.txt": f"The number of this place is {number}.\n"
        + (f"Go on to {names[index + 1]}.\n" if index + 1 < len(names) else "This is the last place.\n")
        for index, (name, number) in enumerate(zip(names, numbers, strict=True))
    }
    decoys = {
        f"{name}/clue.txt": f"The number of this place is {rng.randint(2, 99)}.\nNobody sends you here.\n"
        for name in things(rng, 8)
        if name not in names
    }
    goal = Holds(path="sum.txt", text=str(sum(numbers)))
    return Instance(
        instruction=(
            f"Begin with {names[0]}/clue.txt: it has the number of that place and says where to go on; the next clue is in clue.txt of "
            "the folder of that name, and so on until the last place. Add up the numbers of the places that you came through, and write "
            "the sum into sum.txt. There are other folders; they do not count."
        ),
        files=files | decoys,
        goals=[goal],
        steps=[*(bash(f"cat {name}/clue.txt") for name in names), bash(f"echo {sum(numbers)} > sum.txt", goal)],
    )


def town_report(rng: Random) -> Instance:
    """A table from one file for each town, read one by one."""
    towns = rng.sample(PLACES, 7)
    counts = {town: (rng.randint(10, 90), rng.randint(10, 90)) for town in towns}
    rows = [f"{town} {a + b}" for town, (a, b) in sorted(counts.items(), key=lambda item: (-sum(item[1]), item[0]))]
    goal = Holds(path="report.txt", text=text(rows))
    return Instance(
        instruction=(
            "towns.txt lists towns. For each there is a file records/TOWN.txt with the people counted in the north and in the south of it. "
            "Write report.txt: a line `TOWN PEOPLE` for each town of the list, people of both parts together, most people first (towns "
            "with as many in alphabetical order)."
        ),
        files={"towns.txt": text(towns)}
        | {f"records/{town}.txt": f"north {a}\nsouth {b}\n" for town, (a, b) in counts.items()}
        | {f"records/{town}.txt": "north 1\nsouth 1\n" for town in PLACES if town not in counts},
        goals=[goal],
        steps=[
            bash("cat towns.txt"),
            *(bash(f"cat records/{town}.txt") for town in towns),
            bash(f"printf '%s\\n' {' '.join(quoted(row) for row in rows)} > report.txt", goal),
            bash("cat report.txt"),
        ],
    )


def release(rng: Random) -> Instance:
    """Unpack, read what is asked, set up, start, check, note down: in order."""
    name, person = things(rng, 1)[0], rng.choice(PEOPLE)
    number, token, version = port(rng), code(rng), f"{rng.randint(1, 9)}.{rng.randint(0, 20)}.{rng.randint(0, 20)}"
    notes = (
        f"Release {version}\nThe service listens on port {number}.\nThe file token holds {token}, and nothing else.\n"
        f"Ask {person} if unsure.\n"
    )
    start = '#!/bin/bash\ncd "$(dirname "$0")/public" && exec python3 -m http.server "$(cat ../port)"\n'
    goals: list[Goal] = [
        Holds(path=f"{name}/port", text=str(number)),
        Holds(path=f"{name}/public/token", text=token),
        Executable(path=f"{name}/start.sh"),
        Serves(port=number, path="/token", text=token),
        Holds(path="released.txt", text=f"{version} {number}"),
    ]
    steps: list[Step] = [
        bash("ls"),
        bash(f"tar -xzf {name}.tar.gz", Holds(path=f"{name}/NOTES", text=notes)),
        bash(f"ls {name}"),
        bash(f"cat {name}/NOTES"),
        bash(f"cat {name}/start.sh"),
        bash(f"echo {number} > {name}/port", goals[0]),
        bash(f"echo {token} > {name}/public/token", goals[1]),
        bash(f"chmod +x {name}/start.sh", goals[2]),
        bash(f"./{name}/start.sh > /tmp/service.log 2>&1 & sleep 1", goals[3]),
        bash(f"curl -s http://localhost:{number}/token"),
        bash(f"echo {version} {number} > released.txt", goals[4]),
    ]
    pack = f"tar -czf {name}.tar.gz {name} && rm -r {name}"
    return Instance(
        instruction=(
            f"Release {name}.tar.gz: unpack it here; its NOTES say which port the service listens on, which belongs into {name}/port, and "
            f"which token belongs into {name}/public/token. Make {name}/start.sh executable, start it and leave it running, see that "
            f"/token is served, and write released.txt: the version, a space, the port."
        ),
        files={f"{name}/NOTES": notes, f"{name}/start.sh": start, f"{name}/public/index.html": f"<p>{name}</p>\n"},
        commands=[pack],
        goals=goals,
        steps=steps,
    )


def settle_accounts(rng: Random) -> Instance:
    """Balances that change from file to file; which file comes next is only said in the one before."""
    people = rng.sample(PEOPLE, 3)
    balance = dict.fromkeys(people, 100)
    months = things(rng, 8)
    files = {}
    for index, month in enumerate(months):
        giver, taker = rng.sample(people, 2)
        amount = rng.randint(1, 40)
        balance[giver] -= amount
        balance[taker] += amount
        after = f"then: {months[index + 1]}.txt\n" if index + 1 < len(months) else "then: nothing\n"
        files[f"{month}.txt"] = f"{giver} gives {taker} {amount}\n{after}"
    rows = [f"{name} {balance[name]}" for name in sorted(people)]
    goal = Holds(path="balance.txt", text=text(rows))
    return Instance(
        instruction=(
            f"{', '.join(sorted(people))} begin with 100 each. Each file tells who gives how much to whom, and which file comes then; the "
            f"first is {months[0]}.txt. Read them all, and write balance.txt: a line `NAME AMOUNT` for each of the three at the end, in "
            "alphabetical order."
        ),
        files=files,
        goals=[goal],
        steps=[
            *(bash(f"cat {month}.txt") for month in months),
            bash(f"printf '%s\\n' {' '.join(quoted(row) for row in rows)} > balance.txt", goal),
        ],
    )
