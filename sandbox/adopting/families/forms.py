"""Tasks of forms: searches, and, where the site may be written to, forms that are filled in and sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from urllib.parse import urlsplit

from sandbox.adopting.records import (
    DEEPEST_PX,
    AdoptedTask,
    Look,
    PageField,
    PageForm,
    RequestCheck,
    Site,
    Step,
    Submit,
    is_leaving,
    is_sayable,
    origin_of,
    says_leaving,
)
from sandbox.adopting.values import TEXT_TYPES, options_of, sample_of, shaped, value_of
from warehouse.core.identity import stable_seed

SEARCH_WORDS = 4
"""Tasks of one search, each for another word."""
FORM_FILLS = 6
FORM_FIELDS = 8
"""At most so many are filled in."""
BELOW_PX = 200
"""So far below its last field the button of a form is taken to be."""


class Forms:
    """Forms are verified by the request that the page sends."""

    def __init__(
        self, site: Site, pages: Mapping[str, Look], dropped: Counter[str], *, words: Sequence[str], samples: Mapping[str, str]
    ) -> None:
        self._site, self._pages, self._dropped, self._words, self._samples = site, pages, dropped, words, samples

    def tasks(self, key: str) -> Iterator[AdoptedTask]:
        look = self._pages[key]
        yield from self._searches(key, look)
        if self._site.allow_writes:
            yield from self._fillings(key, look)

    def _searches(self, key: str, look: Look) -> Iterator[AdoptedTask]:
        for number, form in enumerate(look.forms):
            fields = [each for each in look.fields if each.form == number]
            texts = [each for each in fields if each.type in ("text", "search", "") and each.at.key and each.is_sent]
            if form.method != "get" or len(texts) != 1 or not self._is_ours(form):
                continue
            box = texts[0]
            if sum(each.at == box.at for each in look.fields) > 1 or box.top > DEEPEST_PX:
                continue
            others = [each for each in look.fields if each.type in ("text", "search", "") and each.at != box.at and each.form != number]
            where = f' in "{box.at.name}"' if others and is_sayable(box.at.name) else ""
            dice = Random(stable_seed("adopted", "search", box.at.key))
            for word in dice.sample(self._words, min(SEARCH_WORDS, len(self._words))):
                check = RequestCheck(method="GET", path=urlsplit(form.action).path or "/", fields={box.at.key: word})
                yield AdoptedTask(
                    family="search",
                    instruction=f'Search for "{word}"{where}.',
                    start=key,
                    checks=(check,),
                    steps=(Step(do="type", key=key, at=box.at, top=box.top, value=word, enter=True),),
                )

    def _is_ours(self, form: PageForm) -> bool:
        return origin_of(form.action) == self._site.origin and not is_leaving(form.action)

    def _fillings(self, key: str, look: Look) -> Iterator[AdoptedTask]:
        """Forms that write: only where the site may be written to."""
        for number, form in enumerate(look.forms):
            fields = [each for each in look.fields if each.form == number]
            usable = [each for each in fields if each.at.key and each.is_sent and is_sayable(each.at.name) and _can_be_filled(each)]
            num_texts = sum(each.type in TEXT_TYPES for each in usable)
            labels = Counter(each.at.name.casefold() for each in look.fields)
            submits = self._submits(form, look)
            if form.method != "post" or not submits:
                continue
            if form.hides_required:
                self._dropped["a form that hides what it requires"] += 1
            elif not num_texts or len(usable) > FORM_FIELDS or any(each.type in ("password", "file") for each in fields):
                self._dropped["a form that cannot be filled in by its labels"] += 1
            elif any(labels[each.at.name.casefold()] > 1 for each in usable) or any(
                each.is_required and each not in usable for each in fields
            ):
                self._dropped["a form whose fields have no labels of their own"] += 1
            else:
                for fill in range(FORM_FILLS):
                    yield self._filling(key, form, submits[fill % len(submits)], usable, fill)

    def _submits(self, form: PageForm, look: Look) -> list[Submit]:
        """The buttons that send a form: those that can be named, and do not say that they destroy something."""
        seen = form.submits or ((Submit(at=form.submit),) if form.submit else ())
        names = Counter(each.at.name.casefold() for other in look.forms for each in other.submits)
        usable = [each for each in seen if is_sayable(each.at.name) and not says_leaving(each.at.name) and not is_leaving(each.key)]
        usable = [each.model_copy(update={"action": each.action or form.action}) for each in usable if names[each.at.name.casefold()] <= 1]
        return [each for each in usable if origin_of(each.action) == self._site.origin and not is_leaving(each.action)]

    def _filling(self, key: str, form: PageForm, submit: Submit, fields: Sequence[PageField], fill: int) -> AdoptedTask:
        dice = Random(stable_seed("adopted", "form", key, form.action, fill))
        steps = [self._filled(key, each, dice) for each in fields]
        sent = {
            each.at.key: dict(zip(each.options, each.values, strict=False)).get(step.value, step.value)
            for each, step in zip(fields, steps, strict=True)
        }
        pressed = {submit.key: submit.value} if submit.key and len(form.submits) > 1 else {}
        parts = ", ".join(f'"{step.at.name}" is "{step.value}"' for step in steps)
        return AdoptedTask(
            family="fill-form",
            instruction=f'Fill in the form: {parts}; then press "{submit.at.name}".',
            start=key,
            checks=(RequestCheck(method="POST", path=urlsplit(submit.action).path or "/", fields=sent | pressed),),
            steps=(*steps, Step(do="click", key=key, at=submit.at, top=max(each.top for each in fields) + BELOW_PX)),
        )

    def _filled(self, key: str, each: PageField, dice: Random) -> Step:
        if each.type == "select":
            return Step(do="choose", key=key, at=each.at, top=each.top, value=dice.choice(options_of(each)))
        value = shaped(sample_of(each, self._samples), dice) or value_of(each.type, dice, each.max_length)
        return Step(do="type", key=key, at=each.at, top=each.top, value=value)


def _can_be_filled(each: PageField) -> bool:
    return each.type in TEXT_TYPES or (each.type == "select" and not each.is_multiple and bool(each.values) and bool(options_of(each)))
