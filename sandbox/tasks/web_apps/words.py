"""Words that seeded data is made of, and the order in which combinations of them are taken: the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product

from warehouse.core.identity import stable_fraction


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words(
    "Ada Alma Anton Astrid Bela Boris Carla Cesar Dana David Edith Emil Erika Felix Fiona Frank Gerda Greta Hanna Hugo Ida Igor Irma Jakob "
    "Jana Jonas Karla Klaus Lena Leo Lotte Lukas Maja Marek Mira Nils Nora Olga Oskar Paula Peter Rita Rosa Ruben Sara Simon Tilda Tom "
    "Ursula Vera Viktor Wanda"
)
LAST_NAMES = _words(
    "Adler Bach Berg Brandt Busch Conrad Dorn Ebert Engel Falk Fink Frey Fuchs Graf Haas Hahn Heller Horn Huber Jung Kaiser Keller Koch "
    "Kraus Kuhn Lang Lenz Lorenz Maier Marx Moser Nagel Otto Peters Pohl Rau Reich Ritter Roth Sauer Schulz Seidel Simon Stark Stein Thiel "
    "Vogel Voss Weber Wolf Ziegler Zimmer"
)
ADJECTIVES = _words(
    "Amber Ancient Bitter Blue Bold Brave Bright Broken Calm Clever Cold Crimson Curious Dark Deep Distant Early Empty Fair Faint Fast "
    "Foggy Frozen Gentle Golden Grand Green Hidden Hollow Honest Humble Iron Ivory Kind Late Lonely Loud Lucky Mellow Misty Narrow Noble "
    "Old Pale Patient Plain Proud Quick Quiet Rapid Red Round Rusty Scarlet Secret Sharp Silent Silver Slow Small Solid Steady Strange "
    "Sunny Swift Tall Tidy Velvet Warm White Wild Wise Young"
)
NOUNS = _words(
    "Anchor Arrow Basket Beacon Bell Boat Bottle Branch Bridge Bucket Button Candle Canyon Castle Chair Circle Clock Cloud Comet Compass "
    "Copper Corner Crown Desert Door Dragon Drum Engine Falcon Feather Field Flame Forest Fountain Garden Gate Glass Hammer Harbor Hill "
    "Island Kettle Key Ladder Lake Lamp Lantern Ledger Letter Marble Market Meadow Mirror Moon Mountain Needle Ocean Orchard Paper Pearl "
    "Pencil Pillow Pocket Pond Quilt Raven Ribbon River Road Saddle Shadow Shell Spoon Stone Storm Table Tower Tunnel Valley Violin Wagon "
    "Wall Wheel Window Winter"
)
CITIES = _words(
    "Aachen Basel Bergen Bremen Brno Cork Delft Dresden Erfurt Gdansk Genoa Ghent Graz Halle Kassel Kiel Krakow Leeds Leiden Lille Linz "
    "Lodz Lund Lyon Malmo Nantes Oulu Parma Pilsen Porto Riga Rouen Split Tampere Tartu Turin Turku Ulm Vilnius York"
)
COLOURS = ("black", "blue", "brown", "green", "grey", "orange", "pink", "red", "white", "yellow")
LANGUAGES = ("Czech", "Danish", "Dutch", "English", "French", "German", "Italian", "Polish", "Spanish", "Swedish")


@cache
def combinations(kind: str, *lists: tuple[str, ...]) -> tuple[str, ...]:
    """All combinations of a word of each list, in an order fixed by content."""
    return tuple(sorted((" ".join(words) for words in product(*lists)), key=lambda text: stable_fraction("web words", kind, text)))


def pick(options: Sequence[str], *content: object) -> str:
    """One of the options, fixed by content."""
    return options[int(stable_fraction("web pick", *content) * len(options))]


def number(low: int, high: int, *content: object) -> int:
    """A number from low to high, both included, fixed by content."""
    return low + int(stable_fraction("web number", *content) * (high - low + 1))
