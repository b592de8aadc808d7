"""What tasks draw their files from: words, names, numbers. Each function takes the random generator of one instance."""

from __future__ import annotations

from random import Random

THINGS = (
    "acorn",
    "anchor",
    "apple",
    "basket",
    "bell",
    "berry",
    "blanket",
    "bottle",
    "bridge",
    "brush",
    "bucket",
    "button",
    "candle",
    "carpet",
    "castle",
    "cherry",
    "cloud",
    "copper",
    "cotton",
    "crown",
    "daisy",
    "drum",
    "feather",
    "fig",
    "flute",
    "garden",
    "ginger",
    "glove",
    "grape",
    "hammer",
    "harbor",
    "honey",
    "island",
    "ivory",
    "jacket",
    "kettle",
    "kiwi",
    "ladder",
    "lantern",
    "lemon",
    "lily",
    "mango",
    "maple",
    "marble",
    "meadow",
    "melon",
    "mirror",
    "mitten",
    "needle",
    "olive",
    "onion",
    "orchid",
    "paddle",
    "peach",
    "pebble",
    "pepper",
    "pillow",
    "plum",
    "pocket",
    "poppy",
    "pumpkin",
    "quilt",
    "radish",
    "ribbon",
    "river",
    "rocket",
    "saddle",
    "salmon",
    "sandal",
    "shell",
    "silver",
    "sparrow",
    "spoon",
    "stove",
    "sugar",
    "tablet",
    "teapot",
    "thimble",
    "timber",
    "tulip",
    "turnip",
    "umbrella",
    "valley",
    "velvet",
    "violet",
    "walnut",
    "whistle",
    "willow",
    "window",
    "zebra",
)
PLACES = (
    "Aldby",
    "Brenfort",
    "Corwick",
    "Dunmere",
    "Eastholm",
    "Farrow",
    "Glenmoor",
    "Hartsea",
    "Ironbay",
    "Kelston",
    "Larkhill",
    "Midvale",
)
PEOPLE = (
    "Amara",
    "Bruno",
    "Chiara",
    "Dmitri",
    "Elif",
    "Farid",
    "Greta",
    "Hana",
    "Ivo",
    "Jelena",
    "Kofi",
    "Lucia",
    "Mateo",
    "Nadia",
    "Oskar",
    "Priya",
)


def things(rng: Random, num: int) -> list[str]:
    """Different words."""
    return rng.sample(THINGS, num)


def lines(rng: Random, num: int, *, words: int = 3) -> list[str]:
    """Lines of words, no two alike."""
    found: dict[str, None] = {}
    while len(found) < num:
        found[" ".join(things(rng, words))] = None
    return list(found)


def code(rng: Random, length: int = 6) -> str:
    """A short code without characters that look alike."""
    return "".join(rng.choices("ABCDEFGHJKMNPQRSTUVWXYZ23456789", k=length))


def port(rng: Random) -> int:
    return rng.randint(8001, 8999)


def text(entries: list[str]) -> str:
    """A file of lines."""
    return "".join(f"{entry}\n" for entry in entries)
