"""Which invariants of multi-turn reinforcement learning hold in which library: writes docs/rl-conformance.md.

    python -m benchmarks.rl_conformance                        every library
    python -m benchmarks.rl_conformance --libraries ours       this one alone; of the others what docs/measured/rl-conformance.json keeps

The invariants are in invariants/, one adapter a library in peers/rl_*.py, ours in ours/rl_functions.py. Each library runs in a venv of its
own under .bench/, made on first use: torch first, then what importing its functions needs, then the library without the rest of its
dependencies. What was found lies beside the page as JSON, with commit, date and machine of each library's run.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.provenance import provenance, sentence
from benchmarks.common.venv import TORCH, TRL, python_of
from warehouse.core.home import atomic_write

OURS = "ours"
PEERS = {
    "verl": (
        TORCH,
        (
            "packaging",
            "omegaconf",
            "codetiming",
            "dill",
            "hydra-core",
            "pandas",
            "tensordict==0.10.0",
            "ray",
            "psutil",
            "pyyaml",
            "huggingface_hub>=1.5,<2",
        ),
        (
            "--no-deps",
            "verl==0.9.1",
            "transformers==5.10.0",
            "tokenizers==0.22.1",
            "accelerate",
            "peft",
            "datasets",
            "torchdata",
            "safetensors",
            "regex",
        ),
    ),
    "trl": TRL,
    "torchrl": (
        TORCH,
        ("cloudpickle", "packaging", "importlib_metadata", "orjson", "pyvers"),
        ("--no-deps", "torchrl==0.14.1", "tensordict==0.14.3", "hoptorch>=0.1.4"),
    ),
}
"""What is installed for each library, in turn: with its dependencies, then without."""
FOUND = Path("docs/measured/rl-conformance.json")
SYMBOLS = {"pass": "pass", "fail": "**fail**", "missing": "–"}


def judge(library_name: str, seeds: int) -> dict[str, Any]:
    """Run every invariant on the library of this interpreter: for each `pass`, `fail` or `missing`, and why."""
    import numpy as np

    from benchmarks.invariants.all import INVARIANTS
    from benchmarks.invariants.library import Missing

    warnings.simplefilter("ignore")
    module = "benchmarks.ours.rl_functions" if library_name == OURS else f"benchmarks.peers.rl_{library_name}"
    library = importlib.import_module(module).LIBRARY
    results: dict[str, dict[str, str]] = {}
    for invariant in INVARIANTS:
        outcome, why = "pass", ""
        try:
            for seed in range(seeds):
                invariant.check(library, np.random.default_rng(seed))
        except Missing as error:
            outcome, why = "missing", str(error)
        except AssertionError as error:
            outcome, why = "fail", str(error)
        results[invariant.name] = {"outcome": outcome, "why": why}
    return {
        "name": library.name,
        "version": library.version,
        "functions": library.functions,
        "notes": library.notes,
        "torch": importlib.metadata.version("torch"),
        "results": results,
    }


def judged(name: str, root: Path, seeds: int) -> dict[str, Any]:
    python = Path(sys.executable) if name == OURS else python_of(root / name, *PEERS[name])
    command = [str(python), "-m", "benchmarks.rl_conformance", "--library", name, "--seeds", str(seeds)]
    environment = os.environ | {"PYTHONPATH": ".", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=600)
    found: dict[str, Any] = json.loads(done.stdout.decode().strip().splitlines()[-1])
    return found | {"seeds": seeds, "measured": provenance()}


def page(found: Sequence[Mapping[str, Any]]) -> str:
    """The matrix as Markdown."""
    from benchmarks.invariants.all import INVARIANTS

    seeds = min(library["seeds"] for library in found)

    names = [f"{library['name']} {library['version']}".strip() for library in found]
    lines = [
        "# Conformance of reinforcement learning",
        "",
        f"{len(INVARIANTS)} invariants and known traps of multi-turn reinforcement learning, each on {seeds} random batches against our",
        "functions and against those of verl, TRL and torchrl that can be called by themselves on a CPU. The page is written by",
        "`python -m benchmarks.rl_conformance`; the invariants are in benchmarks/invariants, the calls of each library in",
        "benchmarks/peers/rl_*.py, of ours in benchmarks/ours/rl_functions.py. tests/models/test_rl_conformance.py holds ours to them",
        "at every test run, together with those that need more than one function: what becomes of a crash, a cut, a stored",
        "token id or a version, what may not change an update, and that no observation or padding reaches a function of ours.",
        "",
        "A function is judged by itself, and what masks or padding hold is not taken out before it sees them. A fail does not say that the",
        "library's own callers meet it: they may never hand in such a batch. – stands for no such function or argument: our functions of",
        "advantages and values take response tokens end to end and have no argument for masked positions; torchrl's have none either.",
        "",
        "| invariant | met at | " + " | ".join(names) + " |",
        "|---|---|" + "---|" * len(found),
    ]
    remarks: list[str] = []
    for invariant in INVARIANTS:
        cells = []
        for library in found:
            result = library["results"][invariant.name]
            cell = SYMBOLS[result["outcome"]]
            note = library["notes"].get(invariant.name)
            if result["outcome"] == "fail":
                remarks.append(f"{library['name']}, {invariant.name.replace('_', ' ')}: {result['why']}" + (f" ({note})" if note else ""))
                cell += f" [{len(remarks)}]"
            cells.append(cell)
        lines.append(f"| {invariant.name.replace('_', ' ')} | {invariant.source} | " + " | ".join(cells) + " |")
    counts = [[sum(r["outcome"] == kind for r in library["results"].values()) for kind in ("pass", "fail", "missing")] for library in found]
    lines.append("| **passed / failed / no such** | | " + " | ".join(f"{a} / {b} / {c}" for a, b, c in counts) + " |")
    lines += ["", "## What failed", "", *(f"{number}. {remark}" for number, remark in enumerate(remarks, start=1))]
    lines += ["", "## Functions", ""]
    for name, library in zip(names, found, strict=True):
        called = "; ".join(f"{operation}: `{function}`" for operation, function in library["functions"].items())
        lines.append(f"- {name} (torch {library['torch']}): {called}")
    lines += ["", "## When", ""]
    lines += [f"- {name}: measured {sentence(library['measured'])}" for name, library in zip(names, found, strict=True)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(".bench"), help="where the libraries' venvs are made (default: .bench)")
    parser.add_argument("--seeds", type=int, default=20, help="random batches an invariant")
    parser.add_argument("--libraries", nargs="+", choices=[OURS, *PEERS], default=[OURS, *PEERS], help="which to run (default: all)")
    parser.add_argument("--output", type=Path, default=Path("docs/rl-conformance.md"))
    parser.add_argument("--library", help="judge this one alone, in this interpreter, and print JSON (what the venvs run)")
    options = parser.parse_args()
    if options.library:
        print(json.dumps(judge(options.library, options.seeds)))
        return
    kept: dict[str, Any] = json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {}
    kept |= {name: judged(name, options.root, options.seeds) for name in options.libraries}
    if lacking := [name for name in (OURS, *PEERS) if name not in kept]:
        parser.error(f"{FOUND} lacks {', '.join(lacking)}: name them in --libraries too")
    found = [kept[name] for name in (OURS, *PEERS)]
    atomic_write(FOUND, (json.dumps(kept, indent=1, ensure_ascii=False) + "\n").encode())
    options.output.write_text(page(found), encoding="utf-8")
    for library in found:
        outcomes = [result["outcome"] for result in library["results"].values()]
        print(f"{library['name']:10} {library['version']:10} pass {outcomes.count('pass')} fail {outcomes.count('fail')}")


if __name__ == "__main__":
    main()
