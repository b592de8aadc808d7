"""Words that instances of desktop tasks are made of: short, lower case, of one token in most vocabularies."""

from __future__ import annotations

import random

NOUNS = (
    "apple",
    "bird",
    "boat",
    "book",
    "box",
    "bread",
    "bridge",
    "cat",
    "chair",
    "cloud",
    "cup",
    "dog",
    "door",
    "fish",
    "flower",
    "fox",
    "garden",
    "hat",
    "hill",
    "horse",
    "house",
    "key",
    "lake",
    "lamp",
    "leaf",
    "letter",
    "map",
    "moon",
    "mouse",
    "paper",
    "pen",
    "plant",
    "river",
    "road",
    "ship",
    "shoe",
    "snow",
    "star",
    "stone",
    "sun",
    "table",
    "train",
    "tree",
    "wall",
    "wheel",
    "wind",
    "window",
    "wood",
)
COLOURS = ("red", "green", "blue", "yellow", "black", "white", "grey", "brown", "pink", "orange")
BUTTONS = ("Ok", "Cancel", "Yes", "No", "Apply", "Save", "Send", "Open", "Close", "Next", "Back", "Help")


def file_name(rng: random.Random) -> str:
    """Such as "fox.txt"."""
    return f"{rng.choice(NOUNS)}.txt"


def file_names(rng: random.Random, num: int) -> list[str]:
    return [f"{noun}.txt" for noun in rng.sample(NOUNS, num)]
