"""Lessons at a command line: what to run for what is asked, and how to use what it printed; acted out on a shell in memory that prints what
each lesson says it prints.

They are drills of single commands, as the tasks of `terminal:small` are: what tutorials alone solve there is not transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from assets.seed_data.lessons import Lesson
from assets.seed_data.text_sampler import TextSampler
from sandbox.actions import Action, Finished, ToolCall
from sandbox.session import Observation

SHELL_WORDS = ("run", "output", "saw", "exit", "code", "echo", "cat", "mkdir", "mv", "cp", "rm", "wc", "ls", "chmod")
"""What commands and their output are written with."""
ENDINGS = ("txt", "csv", "log", "md", "cfg")


@dataclass(frozen=True, slots=True)
class ShellMove:
    """One step: an action, and what the shell prints after it."""

    action: Action
    output: str = ""


class PracticeShell:
    """A shell as an agent sees it: what it printed last."""

    def __init__(self) -> None:
        self._output = ""

    def observe(self, instruction: str) -> Observation:
        return Observation(
            instruction=instruction, elements=(), screenshot=None, width_px=640, height_px=400, time_ms=0.0, output=self._output
        )

    def action(self, move: ShellMove) -> Action:
        return move.action

    def carry_out(self, move: ShellMove) -> None:
        self._output = move.output


def _lesson(sampler: TextSampler, wordings: Sequence[str], moves: Sequence[ShellMove], crux: int | None = None, **parts: str) -> Lesson:
    return Lesson(sampler.say(*wordings, **parts), PracticeShell(), [*moves, ShellMove(Finished())], crux=crux)


def _run(command: str, output: str = "") -> ShellMove:
    return ShellMove(ToolCall(name="execute_bash", arguments={"command": command}), f"{output}[exit code 0]\n")


def _file(sampler: TextSampler) -> str:
    stem = sampler.word().lower() if sampler.often(0.7) else sampler.string(6, 2).lower()
    return f"{stem}.{sampler.rng.choice(ENDINGS)}" if sampler.often(0.85) else stem


def _value(sampler: TextSampler) -> str:
    """What stands in a file: a word, a few, or a number."""
    return sampler.word() if sampler.often(0.6) else str(sampler.rng.randint(0, 500)) if sampler.often(0.5) else sampler.string(7, 3)


def put(sampler: TextSampler) -> Lesson:
    """Words into a file, over what was there or behind it."""
    is_more, file, text = sampler.often(0.3), _file(sampler), _value(sampler)
    more = ("Let {file} end with one more line, {text}.", "The line {text} goes under all others of {file}.")
    new = ("Let {file} hold {text} and nothing else.", "Put {text} in {file}.", "{file} should say {text}.")
    return _lesson(sampler, more if is_more else new, [_run(f"echo {text} {'>>' if is_more else '>'} {file}")], 0, text=text, file=file)


def tell(sampler: TextSampler) -> Lesson:
    """What a file says, as the answer."""
    file, text = _file(sampler), _value(sampler)
    wordings = ("What does {file} say?", "Tell what {file} holds.", "Answer with what is inside {file}.")
    lesson = _lesson(sampler, wordings, [_run(f"cat {file}", f"{text}\n")], file=file)
    return Lesson(lesson.instruction, lesson.page, [*lesson.moves[:-1], ShellMove(Finished(answer=text))], crux=1)


def pass_on(sampler: TextSampler) -> Lesson:
    """What one file says, into another; looked up first."""
    source, goal, text = _file(sampler), _file(sampler), _value(sampler)
    wordings = (
        "See what {source} says and make {goal} say the same.",
        "{goal} should hold what you find in {source}.",
        "Look into {source}; note what it says in {goal}.",
    )
    moves = [_run(f"cat {source}", f"{text}\n"), _run(f"echo {text} > {goal}")]
    return _lesson(sampler, wordings, moves, 1, source=source, goal=goal)


def arrange(sampler: TextSampler) -> Lesson:
    """One command about files and folders: a new folder, another name, a second copy, gone."""
    one, other, folder = _file(sampler), _file(sampler), sampler.word().lower()
    command, wordings = sampler.rng.choice(
        (
            (
                f"mkdir {folder}",
                ("There should be a folder {folder}.", "Make room: a new folder named {folder}.", "Open a folder {folder}."),
            ),
            (
                f"mv {one} {other}",
                ("{one} should be named {other}.", "Let {one} be called {other} from now on.", "Name {one} anew: {other}."),
            ),
            (f"cp {one} {other}", ("Have the same as {one} in {other}.", "{other} should be a second {one}.", "Double {one} as {other}.")),
            (f"rm {one}", ("{one} should be gone.", "Take {one} away.", "Nobody needs {one} any more.")),
            (f"mv {one} {folder}", ("{one} belongs in the folder {folder}.", "Let {folder} take in {one}.", "Put {one} into {folder}.")),
        )
    )
    return _lesson(sampler, wordings, [_run(command)], 0, one=one, other=other, folder=folder)


def count(sampler: TextSampler) -> Lesson:
    """How many lines, as the answer or into a file."""
    file, goal, num = _file(sampler), _file(sampler), str(sampler.rng.randint(1, 60))
    if sampler.often(0.5):
        wordings = ("How long is {file}, in lines?", "Tell the number of lines of {file}.")
        lesson = _lesson(sampler, wordings, [_run(f"wc -l {file}", f"{num} {file}\n")], file=file)
        return Lesson(lesson.instruction, lesson.page, [*lesson.moves[:-1], ShellMove(Finished(answer=num))], crux=1)
    wordings = ("How many lines has {file}? Note the number in {goal}.", "Let {goal} hold the length of {file} in lines.")
    return _lesson(sampler, wordings, [_run(f"wc -l {file}", f"{num} {file}\n"), _run(f"echo {num} > {goal}")], 1, file=file, goal=goal)


def look_around(sampler: TextSampler) -> Lesson:
    """A folder's files, one of which is wanted by its ending or is the only one."""
    ending = sampler.rng.choice(ENDINGS)
    others = [f"{sampler.word().lower()}.{sampler.rng.choice(ENDINGS)}" for _ in range(sampler.rng.randint(0, 3))]
    wanted, text = f"{sampler.word().lower()}.{ending}", _value(sampler)
    listing = sorted({wanted, *(name for name in others if not name.endswith(f".{ending}"))})
    wordings = ("See which file ends in {ending}, and answer with what it says.", "What does the only {ending} file here say?")
    moves = [_run("ls", "\n".join(listing) + "\n"), _run(f"cat {wanted}", f"{text}\n")]
    lesson = _lesson(sampler, wordings, moves, ending=ending)
    return Lesson(lesson.instruction, lesson.page, [*lesson.moves[:-1], ShellMove(Finished(answer=text))], crux=1)


SHELL_LESSONS: tuple[tuple[Callable[[TextSampler], Lesson], float], ...] = (
    (put, 0.12),
    (tell, 0.06),
    (pass_on, 0.10),
    (arrange, 0.14),
    (count, 0.08),
    (look_around, 0.05),
)
"""Each kind of lesson with its share, on the scale of the web's."""
