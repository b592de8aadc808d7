"""Filters and routing with pandas, its text columns held by Arrow: columns at a time where it has an operation, `groupby` by episode.

python filter_pandas.py FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from filter_plain import COORDINATES, JUDGES, LEADING, MINIMUM, NAMED, PASSIVE, QUOTED, WORD, digest, likeness_of, peak_mb

TEXT = pd.ArrowDtype(pa.string())
HIDDEN = r"(?m)(?:\bWOB_[A-Z_]+)|(?:\bdata-wob[_-])|(?:^\s*\{.*\"[^\"]+\"\s*:)|(?:\"(?:answer|solution|expected|ground_truth)\"\s*:)"
BUSY = r'<progressbar>|<busy>|aria-busy|"[Ll]oading[ .…]*"|"[Pp]lease wait[ .…]*"'


def read(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    wanted = ["episode_id", "step_index", "observation", "screenshot_id", "messages", "response", "thought", "action"]
    table = pads.dataset(folder / "steps").to_table(columns=wanted)
    prompt = pc.struct_field(pc.list_flatten(table["messages"]), "content")
    steps = table.drop_columns(["messages"]).append_column("prompt", prompt).to_pandas(types_mapper={pa.string(): TEXT}.get)
    columns = ["episode_id", "task_id", "instruction", "split", "outcome", "reward"]
    return pads.dataset(folder / "episodes").to_table(columns=columns).to_pandas(), steps.sort_values(["episode_id", "step_index"])


def judge(steps: pd.DataFrame) -> pd.DataFrame:
    """Columns that the filters are made of."""
    actions = pd.DataFrame([_action(text) for text in steps["action"]], index=steps.index, columns=["kind", "rest", "pixels", "typed"])
    thought = steps["thought"].str.replace(QUOTED, " _ ", regex=True).str.lower()
    steps["compared"] = thought.str.contains(LEADING.replace("(", "(?:"), regex=True) & actions["kind"].isin(list(NAMED))
    says = pd.Series(False, index=steps.index)
    for kind, words in NAMED.items():
        says |= (actions["kind"] == kind) & thought.str.contains(words, regex=True)
    steps["signature"] = actions["rest"] + "|" + actions["pixels"]
    steps["state"] = steps["observation"].where(steps["observation"] != "", steps["screenshot_id"].fillna(""))
    steps["contradicts"] = steps["compared"] & ~says
    steps["invalid"], steps["active"] = actions["kind"] == "invalid", ~actions["kind"].isin(PASSIVE)
    steps["typed"] = actions["typed"]
    steps["empty"] = ~steps["response"].str.contains(r"\S", regex=True)
    steps["hidden"] = steps["prompt"].str.contains(HIDDEN, regex=True)
    steps["unsettled"] = steps["observation"].str.contains(BUSY, regex=True) & steps["active"]
    following = steps.groupby("episode_id", sort=False)
    after, shot = following["observation"].shift(-1), following["screenshot_id"].shift(-1)
    is_last = following.cumcount(ascending=False) == 0
    steps["pair"] = steps["active"] & ~is_last
    steps["idle"] = (
        steps["pair"]
        & (after == steps["observation"]).fillna(False)
        & ((shot == steps["screenshot_id"]).fillna(False) | (shot.isna() & steps["screenshot_id"].isna()))
    )
    steps["repeated"] = steps.duplicated(["episode_id", "state", "signature"])
    changed = (steps["signature"] != following["signature"].shift()).cumsum()
    steps["run"] = changed.groupby([steps["episode_id"], changed]).transform("size")
    return steps


def _action(text: str) -> tuple[Any, ...]:
    action = json.loads(text)
    pixels = " ".join(str(round(action[key] / 8)) for key in COORDINATES if action.get(key) is not None)
    rest = json.dumps(sorted((key, value) for key, value in action.items() if key not in COORDINATES))
    typed = action.get("text", "") if action["kind"] == "type" else action.get("answer", "") if action["kind"] == "finished" else ""
    return action["kind"], rest, pixels, typed or ""


def route(episodes: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """A row an episode with its route and a column a filter."""
    by = steps.groupby("episode_id", sort=False)
    sums = by[["invalid", "idle", "pair", "repeated", "compared", "contradicts", "empty", "hidden", "active", "unsettled"]].sum()
    sums["num"], sums["longest"] = by.size(), by["run"].max()
    table = episodes.merge(sums, left_on="episode_id", right_index=True, how="left").fillna(dict.fromkeys([*sums.columns], 0))
    won = table["reward"].fillna(0) >= 0.999
    limit = (3 * table["task_id"].map(table[won].groupby("task_id")["num"].median()).fillna(0.0)).clip(lower=8)
    steps_or_one = table["num"].clip(lower=1)
    for judge, bad in (("format", "invalid"), ("loop", "repeated")):
        table[judge] = ((table["num"] - table[bad]) / steps_or_one).where(table["num"] > 0, 1.0)
    table["contradiction"] = ((table["compared"] - table["contradicts"]) / table["compared"].clip(lower=1)).where(
        table["compared"] > 0, 1.0
    )
    table["no_op"] = ((table["pair"] - table["idle"]) / table["pair"].clip(lower=1)).where(table["pair"] > 0, 1.0)
    table["settled"] = ((table["active"] - table["unsettled"]) / table["active"].clip(lower=1)).where(table["active"] > 0, 1.0)
    table["repeats"] = (24 / table["longest"].clip(lower=1)).clip(upper=1)
    table["too_long"] = (limit / steps_or_one).where(table["num"] > limit, 1.0)
    table["too_short"] = ((table["num"] - table["empty"]) / steps_or_one).clip(upper=1)
    leaks = (table["hidden"] > 0).astype(bool) | table["episode_id"].isin(_unread(table[won], steps))
    table["leak"] = (~leaks).astype(float)
    table["duplicate"] = 1 - table["episode_id"].map(_likeness(table, steps)).fillna(0.0)
    table["contamination"] = (table["split"] == "train").astype(float)
    out = (table["outcome"] == "crashed") | table["reward"].isna() | (table["split"] != "train")
    out |= (table["leak"] < 1) | (table["duplicate"] < 0.1)
    good = won & (table[list(MINIMUM)] >= list(MINIMUM.values())).all(axis=1)
    table["route"] = pd.Series("ct", index=table.index).mask(good, "sft").mask(out, "withheld")
    return table[["episode_id", "route", *JUDGES]]


def _unread(won: pd.DataFrame, steps: pd.DataFrame) -> set[str]:
    """Solved episodes that typed a word which stood in no prompt so far."""
    typing = steps[(steps["typed"] != "") & steps["episode_id"].isin(won["episode_id"])]
    prompts = steps[steps["episode_id"].isin(typing["episode_id"])].groupby("episode_id", sort=False)["prompt"].apply(list).to_dict()
    found = set()
    for episode, index, typed in zip(typing["episode_id"], typing["step_index"], typing["typed"], strict=True):
        read = "\n".join(prompts[episode][: index + 1]).casefold()
        if any(word.casefold() not in read for word in WORD.findall(typed)):
            found.add(episode)
    return found


def _likeness(table: pd.DataFrame, steps: pd.DataFrame) -> dict[str, float]:
    keys = steps.groupby("episode_id", sort=False)["signature"].agg("\n".join).rename("actions_key")
    usable = table[(table["outcome"] != "crashed") & (table["split"] == "train") & (table["num"] > 0)]
    usable = usable.merge(keys, left_on="episode_id", right_index=True)
    duplicates = usable[usable.duplicated(["task_id", "instruction", "actions_key"], keep=False)].sort_values("episode_id")
    screens = steps[steps["episode_id"].isin(duplicates["episode_id"])].groupby("episode_id", sort=False)["state"].apply(list).to_dict()
    rows = duplicates.rename(columns={"num": "num_steps"}).to_dict("records")
    return likeness_of([row | {"screens": screens[row["episode_id"]]} for row in rows])


def main() -> None:
    began, cpu = time.perf_counter(), time.process_time()
    episodes, steps = read(Path(sys.argv[1]))
    found = route(episodes, judge(steps))
    seconds, cpu_s, peak = time.perf_counter() - began, time.process_time() - cpu, peak_mb()
    rows = {episode: (to, scores) for episode, to, *scores in found.itertuples(index=False, name=None)}
    print(
        json.dumps(
            {"episodes": len(found), "seconds": seconds, "cpu_s": cpu_s, "peak_mb": peak, "digest": digest(rows), "version": pd.__version__}
        )
    )


if __name__ == "__main__":
    main()
