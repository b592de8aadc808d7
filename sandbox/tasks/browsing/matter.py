"""The chemical elements, from periodictable (public domain): what is measured of them, and which follows which."""

from __future__ import annotations

from collections.abc import Mapping

import periodictable

from sandbox.tasks.browsing.graph import Attribute, Entity, Fact

FAMOUS_UP_TO = 20
EVERYDAY = frozenset({"iron", "nickel", "copper", "zinc", "silver", "tin", "iodine", "platinum", "gold", "mercury", "lead", "uranium"})
"""These, and the first of the table, count as known to everybody."""
_STRUCTURES = {"hcp": "hexagonal close-packed", "fcc": "face-centred cubic", "bcc": "body-centred cubic", "sc": "simple cubic"}

ATTRIBUTES: Mapping[str, tuple[Attribute, ...]] = {
    "element": (
        Attribute(name="symbol", label="Symbol", kind="text", is_identifier=True),
        Attribute(name="number", label="Atomic number", kind="number", is_identifier=True),
        Attribute(name="mass", label="Atomic mass", kind="number"),
        Attribute(name="density", label="Density", kind="number"),
        Attribute(name="radius", label="Covalent radius", kind="number"),
        Attribute(name="structure", label="Crystal structure", kind="text"),
        Attribute(name="isotopes", label="Known isotopes", kind="number", phrase="number of known isotopes of"),
        Attribute(name="previous", label="Element before", kind="link", phrase="element before", is_asked=False),
        Attribute(name="next", label="Element after", kind="link", phrase="element after", is_asked=False),
    )
}


def matter() -> list[Entity]:
    """Hydrogen to oganesson."""
    elements = [element for element in periodictable.elements if element.number > 0]
    names = {element.number: element.name.capitalize() for element in elements}
    return [_entity(element, names) for element in elements]


def _entity(element: object, names: Mapping[int, str]) -> Entity:
    number: int = element.number  # type: ignore[attr-defined]
    symbol, mass = str(element.symbol), float(element.mass)  # type: ignore[attr-defined]
    facts = [
        Fact(attribute="symbol", text=symbol),
        Fact(attribute="number", text=str(number), number=float(number)),
        Fact(attribute="mass", text=f"{mass:g} u", number=float(f"{mass:g}")),
    ]
    for name, source, unit in (("density", "density", " g/cm³"), ("radius", "covalent_radius", " Å")):
        if (value := getattr(element, source, None)) is not None:
            facts.append(Fact(attribute=name, text=f"{float(value):g}{unit}", number=float(f"{float(value):g}")))
    if structure := getattr(element, "crystal_structure", None):
        symmetry = str(structure["symmetry"]).lower()
        if symmetry not in ("atom", "diatom"):
            facts.append(Fact(attribute="structure", text=_STRUCTURES.get(symmetry, symmetry)))
    isotopes = len(element.isotopes)  # type: ignore[attr-defined]
    facts.append(Fact(attribute="isotopes", text=str(isotopes), number=float(isotopes)))
    for name, other in (("previous", number - 1), ("next", number + 1)):
        if other in names:
            facts.append(Fact(attribute=name, text=names[other], target=f"element/{other:03}"))
    is_famous = number <= FAMOUS_UP_TO or names[number].lower() in EVERYDAY
    return Entity(
        key=f"element/{number:03}",
        kind="element",
        name=names[number],
        path=f"element/{number:03}.html",
        facts=tuple(facts),
        is_famous=is_famous,
    )
