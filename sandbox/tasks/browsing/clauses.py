"""How facts are spoken of without their value, by kind of entity and attribute: literal tables of clauses. A clause has its verb, and
follows what it describes. Which of them describe an entity is conditions.py's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Blur:
    """How a number is spoken of. `scale` log: ranges are factors wide; linear: `widths` wide; count: small whole numbers."""

    scale: Literal["log", "linear", "count"]
    between: str
    more: str = ""
    fewer: str = ""
    exactly: str = ""
    relative: tuple[str, str] = ("", "")
    """More than another, and less: with the other's name."""


NUMBERS: Mapping[tuple[str, str], Blur] = {
    ("country", "population"): Blur(
        scale="log",
        between="has between {low} and {high} inhabitants",
        more="has more than {low} inhabitants",
        fewer="has fewer than {high} inhabitants",
        relative=("has more inhabitants than {name}", "has fewer inhabitants than {name}"),
    ),
    ("country", "area"): Blur(
        scale="log",
        between="covers between {low} and {high} km²",
        more="covers more than {low} km²",
        fewer="covers less than {high} km²",
        relative=("is larger than {name}", "is smaller than {name}"),
    ),
    ("country", "subdivisions"): Blur(scale="count", between="has {low} to {high} subdivisions", exactly="has exactly {low} subdivisions"),
    ("country", "cities"): Blur(scale="count", between="has {low} to {high} large cities", exactly="has exactly {low} large cities"),
    ("city", "population"): Blur(
        scale="log",
        between="has between {low} and {high} inhabitants",
        more="has more than {low} inhabitants",
        fewer="has fewer than {high} inhabitants",
        relative=("has more inhabitants than {name}", "has fewer inhabitants than {name}"),
    ),
    ("city", "latitude"): Blur(
        scale="linear",
        between="lies between {low} and {high}",
        relative=("lies further north than {name}", "lies further south than {name}"),
    ),
    ("city", "longitude"): Blur(
        scale="linear", between="lies between {low} and {high}", relative=("lies further east than {name}", "lies further west than {name}")
    ),
    ("language", "count"): Blur(
        scale="count", between="is spoken in {low} to {high} countries", exactly="is spoken in exactly {low} countries"
    ),
    ("currency", "count"): Blur(
        scale="count", between="is used in {low} to {high} countries", exactly="is used in exactly {low} countries"
    ),
    ("element", "mass"): Blur(
        scale="log", between="has an atomic mass between {low} and {high} u", relative=("is heavier than {name}", "is lighter than {name}")
    ),
    ("element", "density"): Blur(
        scale="log", between="has a density between {low} and {high} g/cm³", relative=("is denser than {name}", "is less dense than {name}")
    ),
    ("element", "radius"): Blur(
        scale="log",
        between="has a covalent radius between {low} and {high} Å",
        relative=("has a larger covalent radius than {name}", "has a smaller covalent radius than {name}"),
    ),
    ("element", "isotopes"): Blur(scale="count", between="has {low} to {high} known isotopes", exactly="has exactly {low} known isotopes"),
    ("package", "size"): Blur(scale="log", between="has a size between {low} and {high}", more="has a size over {low}"),
    ("package", "installed"): Blur(scale="log", between="has a popcon I between {low} and {high}", fewer="has a popcon I under {high}"),
    ("package", "used"): Blur(scale="log", between="has a popcon V between {low} and {high}"),
    ("section", "packages"): Blur(scale="count", between="tells of {low} to {high} packages in a table"),
}

MANY: Mapping[tuple[str, str], tuple[str, str]] = {
    ("country", "neighbours"): ("has exactly {low} neighbours", "has a neighbour whose name begins with {letter}"),
    ("country", "languages"): ("has exactly {low} languages", "has a language whose name begins with {letter}"),
    ("language", "countries"): ("", "is spoken in a country whose name begins with {letter}"),
    ("currency", "countries"): ("", "is used in a country whose name begins with {letter}"),
}
"""Of attributes with several values: how a question gives their number, and one of them by its initial."""

INITIALS: Mapping[tuple[str, str], str] = {
    ("country", "capital"): "has a capital whose name begins with {letter}",
    ("country", "currency"): "has a currency whose name begins with {letter}",
    ("city", "country"): "lies in a country whose name begins with {letter}",
}
SAME: Mapping[tuple[str, str], str] = {
    ("country", "continent"): "lies in {text}",
    ("element", "structure"): "has the crystal structure {text}",
}
"""Given as they are: so many share them."""
NAMES: Mapping[str, str] = {
    "country": "has a name that begins with {letter}",
    "city": "has a name that begins with {letter}",
    "language": "has a name that begins with {letter}",
    "currency": "has a name that begins with {letter}",
    "element": "has a name that begins with {letter}",
    "package": "has a name that begins with {letter}",
}
