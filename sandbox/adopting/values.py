"""Words and values that adopted tasks ask to be typed: words of the site itself, and values of the shape of those that its fields hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from random import Random

from sandbox.adopting.records import Look, PageField, is_of_date, is_sayable, says_leaving

TEXT_TYPES = frozenset({"text", "search", "textarea", "email", "url", "tel", "number", ""})
WORDS = ("harbour", "lantern", "meadow", "copper", "violin", "granite", "saffron", "walnut", "glacier", "compass")


def vocabulary(pages: Iterable[Look]) -> list[str]:
    """Words of the site's own links, headings and tables, which its search knows, but not those of its menus, which most pages have; then
    some of ours."""
    on_pages: Counter[str] = Counter()
    looks = list(pages)
    for look in looks:
        cells = [cell.text for table in look.tables for row in table.rows for cell in row]
        texts = (look.title, look.heading, *(link.at.name for link in look.links), *cells)
        on_pages.update({word for text in texts for word in re.findall(r"\b[A-Za-z]{4,12}\b", text) if not says_leaving(word)})
    own = [word for word, num in on_pages.most_common() if num <= max(2, len(looks) // 5)]
    words = {word.casefold(): word for word in sorted(own, key=lambda word: (-on_pages[word], word))[:60]}
    return list(dict.fromkeys([*words.values(), *WORDS]))


def samples(pages: Iterable[Look]) -> Mapping[str, str]:
    """For each name of a text field something that such a field holds on some page, or a column of that name in lower case, where it has a
    shape to follow."""
    found: dict[str, str] = {}
    for look in pages:
        for table in look.tables:
            for number, column in enumerate(table.columns):
                texts = [as_typed(row[number].text) for row in table.rows]
                if texts and all(shaped(text, Random(0)) for text in texts):
                    found.setdefault(column.casefold(), texts[0])
        for each in look.fields:
            if each.type in TEXT_TYPES and each.at.key not in found and shaped(each.state, Random(0)):
                found[each.at.key] = each.state
    return found


def sample_of(each: PageField, found: Mapping[str, str]) -> str:
    """Of those samples the one that such a field holds elsewhere; empty without one."""
    return found.get(each.at.key) or found.get(each.at.name.casefold(), "")


def options_of(each: PageField) -> list[str]:
    """Those of a choice that can be asked for."""
    named = [option for option in each.options if is_sayable(option) and not says_leaving(option)]
    return [option for option in named if each.options.count(option) == 1 and option != each.state]


def as_typed(text: str) -> str:
    """A date as fields take it, with another day of its year; any other text as it is."""
    year = re.search(r"\b(19|20)\d\d\b", text) if is_of_date(text) else None
    return f"{year.group()}-01-01" if year is not None else text


def shaped(like: str, dice: Random) -> str:
    """Another date, time, number, code or mail address of the shape of one; empty for any other text."""
    if re.fullmatch(r"\d{4}-\d\d-\d\d", like):
        return f"{like[:4]}-{dice.randrange(1, 13):02}-{dice.randrange(1, 29):02}"
    if re.fullmatch(r"\d\d:\d\d(:\d\d)?", like):
        return f"{dice.randrange(24):02}:{dice.randrange(60):02}" + (":00" if len(like) > 5 else "")
    if re.fullmatch(r"[\w.+-]+@[\w-]+\.[\w.-]+", like):
        return value_of("email", dice)
    if re.fullmatch(r"0\d{5,14}|[A-Za-z]{1,5}[-_/#]?\d{2,9}", like):
        return like[0] + re.sub(r"\d", lambda _: str(dice.randrange(10)), like[1:])
    if re.fullmatch(r"\d{1,9}(\.\d\d)?", like):
        return str(dice.randrange(2, 90)) + (f".{dice.randrange(10, 100)}" if "." in like else "")
    return ""


def value_of(kind: str, dice: Random, max_length: int = 0) -> str:
    word = dice.choice(WORDS)
    match kind:
        case "number":
            return str(dice.randrange(2, 90))
        case "email":
            return f"{word}{dice.randrange(10, 99)}@example.org"
        case "url":
            return f"http://example.org/{word}{dice.randrange(10, 99)}"
        case "tel":
            return f"0{dice.randrange(10**8, 10**9)}"
    number = str(dice.randrange(10, 999))
    text = f"{word} {number}"
    return text if not 0 < max_length < len(text) else f"{word[: max(0, max_length - len(number))]}{number}"[:max_length]
