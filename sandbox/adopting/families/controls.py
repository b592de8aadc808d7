"""Tasks of what stands on a page to be used: fields, choices, toggles and buttons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from sandbox.adopting.records import (
    DEEPEST_PX,
    AdoptedTask,
    Look,
    PageField,
    Press,
    ShownCheck,
    StateCheck,
    Step,
    UrlCheck,
    is_sayable,
    names_of,
    page_key,
)
from sandbox.adopting.values import TEXT_TYPES, options_of, sample_of, shaped
from warehouse.core.identity import stable_seed

FIELD_WORDS = 3
"""Tasks of one field, each with another word."""
FIELD_OPTIONS = 6
"""Tasks of one choice, each with another option."""


class Controls:
    """Fields and toggles are verified by the state of the page, buttons by what the crawl saw them do."""

    def __init__(self, pages: Mapping[str, Look], dropped: Counter[str], *, words: Sequence[str], samples: Mapping[str, str]) -> None:
        self._pages, self._dropped, self._words, self._samples = pages, dropped, words, samples

    def tasks(self, key: str) -> Iterator[AdoptedTask]:
        look = self._pages[key]
        yield from self._fields(key, look)
        yield from self._toggles(key, look)
        yield from self._presses(key, look)

    def _fields(self, key: str, look: Look) -> Iterator[AdoptedTask]:
        labels = Counter(each.at.name.casefold() for each in look.fields)
        for each in look.fields:
            label = each.at.name
            if not is_sayable(label) or each.top > DEEPEST_PX:
                self._dropped["a field without a label that can be said"] += 1
            elif labels[label.casefold()] > 1:
                self._dropped["several fields of one label"] += 1
            elif each.type in TEXT_TYPES:
                yield from self._fill_field(key, each)
            elif each.type == "select" and not each.is_multiple:
                yield from self._choose(key, each)
            elif each.type in ("checkbox", "radio"):
                wanted = "true" if each.type == "radio" or each.state == "false" else "false"
                if each.state != wanted:
                    said = "Choose" if each.type == "radio" else "Tick" if wanted == "true" else "Untick"
                    yield self._setting(
                        "toggle", f'{said} "{label}".', key, Step(do="set", key=key, at=each.at, top=each.top, value=wanted)
                    )

    def _fill_field(self, key: str, each: PageField) -> Iterator[AdoptedTask]:
        dice = Random(stable_seed("adopted", "field", each.at.name))
        short = [word for word in self._words if not 0 < each.max_length < len(word)]
        like = sample_of(each, self._samples)
        for word in dice.sample(short, min(FIELD_WORDS, len(short))):
            value = str(dice.randrange(2, 90)) if each.type == "number" else shaped(like, dice) or word
            if each.state != value and each.type not in ("email", "url"):
                step = Step(do="type", key=key, at=each.at, top=each.top, value=value)
                yield self._setting("fill-field", f'Type "{value}" into the field "{each.at.name}".', key, step)

    def _choose(self, key: str, each: PageField) -> Iterator[AdoptedTask]:
        usable = options_of(each)
        dice = Random(stable_seed("adopted", "choose", each.at.name))
        for option in dice.sample(usable, min(FIELD_OPTIONS, len(usable))):
            step = Step(do="choose", key=key, at=each.at, top=each.top, value=option)
            yield self._setting("choose-option", f'Choose "{option}" in "{each.at.name}".', key, step)

    def _toggles(self, key: str, look: Look) -> Iterator[AdoptedTask]:
        names = Counter(each.at.name.casefold() for each in look.toggles)
        for each in look.toggles:
            name = each.at.name
            if not is_sayable(name) or each.top > DEEPEST_PX or names[name.casefold()] > 1:
                self._dropped["a toggle without a name of its own"] += 1
                continue
            wanted = "false" if each.state == "true" else "true"
            if each.kind == "tab" and wanted == "false":
                continue
            verbs = {"expand": ("Expand", "Collapse"), "tab": ("Switch to the tab", ""), "tick": ("Switch on", "Switch off")}[each.kind]
            said = verbs[0] if wanted == "true" else verbs[1]
            yield self._setting("toggle", f'{said} "{name}".', key, Step(do="set", key=key, at=each.at, top=each.top, value=wanted))

    @staticmethod
    def _setting(family: str, instruction: str, key: str, step: Step) -> AdoptedTask:
        return AdoptedTask(
            family=family, instruction=instruction, start=key, checks=(StateCheck(at=step.at, state=step.value, page=key),), steps=(step,)
        )

    def _presses(self, key: str, look: Look) -> Iterator[AdoptedTask]:
        """Buttons that led to another page when the crawl tried them, or brought up a dialog, a menu or another heading."""
        names, lasting = names_of(look), {button.at for button in look.buttons}
        for press in look.presses:
            name = press.at.name
            if press.is_refused:
                self._dropped["a button that would write"] += 1
            elif press.at not in lasting or names[name.casefold()] > 1:
                self._dropped["a button without a name of its own"] += 1
            elif press.top > DEEPEST_PX:
                self._dropped["too far down the page"] += 1
            elif press.opens and page_key(press.opens) not in self._pages:
                self._dropped["a button to what was not crawled"] += 1
            elif (check := _outcome(press, key)) is None:
                self._dropped["a button that changes nothing that is verified"] += 1
            else:
                said = f'Click "{name}".' if press.at.tag == "a" else f'Press "{name}".'
                step = Step(do="click", key=key, at=press.at, top=press.top)
                yield AdoptedTask(family="press-button", instruction=said, start=key, checks=(check,), steps=(step,))


def _outcome(press: Press, key: str) -> UrlCheck | ShownCheck | None:
    if press.opens:
        return UrlCheck(key=page_key(press.opens))
    return None if press.shows is None else ShownCheck(view=press.shows, page=key)
