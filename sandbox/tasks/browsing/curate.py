"""Let a model screen and reword questions, and write them down:

    python -m sandbox.tasks.browsing.curate questions.jsonl --url http://127.0.0.1:8000/v1 --model NAME --num 200
    FLYWHEEL_BROWSING_QUESTIONS=questions.jsonl flywheel run …

Candidates that the model answers from memory are passed over; wordings that leak the answer, or lose a figure or a name, are not used.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from sandbox.tasks.browsing.chat import ChatModel, ChatSettings
from sandbox.tasks.browsing.curated import Curated
from sandbox.tasks.browsing.families import FAMILIES
from sandbox.tasks.browsing.instance import Instance
from sandbox.tasks.browsing.rewriting import ClosedBook, Rewriter, knows, reworded
from sandbox.tasks.browsing.source import load_tasks
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import ConfigError, SandboxError, ServerUnreachable

MAX_SKIPPED = 8


def curate(task: Task, seed: int, model: str, closed_book: ClosedBook | None, rewriter: Rewriter | None, counts: Counter[str]) -> Curated:
    """One question: the first candidate that the model does not know, in its words where they will do. Raises SandboxError."""
    skip = 0
    instance = FAMILIES[task.name].instance(task, seed)
    while closed_book is not None and knows(instance, closed_book):
        counts["known from memory"] += 1
        skip += 1
        if skip > MAX_SKIPPED:
            raise SandboxError(f"{task.name}, seed {seed}: the model knows the first {skip} questions.")
        instance = FAMILIES[task.name].instance(task, seed, skip=skip)
    return Curated(task=task.name, seed=seed, skip=skip, question=_words(instance, rewriter, counts), model=model)


def _words(instance: Instance, rewriter: Rewriter | None, counts: Counter[str]) -> str:
    """Empty where the rule's words stay."""
    if rewriter is None:
        return ""
    try:
        done = reworded(instance, rewriter.rewrite(instance.question), rewriter.name)
    except ValueError as error:
        counts[f"wording refused: {str(error).partition(' ' + chr(39))[0]}"] += 1
        return ""
    counts["reworded"] += 1
    return done.question


def instances(names: Sequence[str], num: int, split: Split) -> Iterator[tuple[Task, int]]:
    """`num` questions of each task, by turns."""
    tasks = load_tasks()
    for place in range(num):
        for name in names:
            yield tasks[name], tasks[name].seeds(split, 1, skip=place)[0]


def main(arguments: Sequence[str] | None = None) -> int:
    composed = [name for name, family in FAMILIES.items() if family.shape is not None]
    parser = argparse.ArgumentParser(prog="python -m sandbox.tasks.browsing.curate", description="Screen and reword questions by a model.")
    parser.add_argument("file", type=Path, help="JSON lines, rewritten")
    parser.add_argument("--url", required=True, help="of an OpenAI-compatible server, with /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--token-env", help="environment variable that holds the token")
    parser.add_argument("--num", type=int, default=20, help="questions a task (default 20)")
    parser.add_argument("--tasks", default=",".join(composed), help=f"with commas between; default: {','.join(composed)}")
    parser.add_argument("--split", type=Split, default=Split.TRAIN, choices=list(Split))
    parser.add_argument("--no-rewording", action="store_true")
    parser.add_argument("--no-screening", action="store_true")
    options = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    try:
        if unknown := sorted(set(options.tasks.split(",")) - set(composed)):
            raise ConfigError(f"--tasks names {', '.join(unknown)}; questions that can be curated are {', '.join(composed)}.")
        model = ChatModel(ChatSettings(base_url=options.url, model=options.model, token_env=options.token_env))
        aside = options.file.with_suffix(".part")
        with aside.open("w", encoding="utf-8") as out:
            for task, seed in instances(options.tasks.split(","), options.num, options.split):
                closed_book, rewriter = (None if options.no_screening else model), (None if options.no_rewording else model)
                try:
                    entry = curate(task, seed, options.model, closed_book, rewriter, counts)
                except ServerUnreachable:
                    raise
                except SandboxError as error:
                    counts["given up"] += 1
                    print(error, file=sys.stderr)
                    continue
                counts["kept"] += 1
                out.write(entry.model_dump_json() + "\n")
        os.replace(aside, options.file)
        model.close()
    except (ConfigError, ServerUnreachable) as error:
        print(error, file=sys.stderr)
        return 2
    print(", ".join(f"{reason} {number}" for reason, number in counts.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
