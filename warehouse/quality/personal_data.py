"""The filters `personal_data` and `language`, for what people recorded or annotated: texts that hold an address, a number or a secret of
theirs, and words in a script that the policy is not to learn. A policy's own episodes in sandboxes are not looked at.

DuckDB finds what looks like personal data, here it is verified (a card's check digit, an IBAN's remainder). Reasons never repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import duckdb
import pyarrow as pa

from warehouse.core.errors import ConfigError
from warehouse.quality.config import QualityConfig
from warehouse.quality.filter_rows import filter_rows

EMAIL = r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,24}\b"
CARD = r"\b\d(?:[ -]?\d){12,18}\b"
IBAN = r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b"
PHONE = r"\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d(?:[ .-]?\d){5,12}\b|\(\d{3}\) ?\d{3}[ .-]\d{4}\b|\b\d{3}[.-]\d{3}[.-]\d{4}\b"
SECRET = (
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36,}\b|\bgithub_pat_[A-Za-z0-9_]{22,}\b|\bsk-[A-Za-z0-9_-]{20,}\b"
    r"|\bxox[abprs]-[A-Za-z0-9-]{10,}\b|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\b[Bb]earer [A-Za-z0-9._~+/-]{20,}=*"
)
EXAMPLE_DOMAINS = re.compile(r"@(?:[\w-]+\.)*(?:example\.(?:com|org|net)|example|test|invalid|localhost)$", re.IGNORECASE)
"""Addresses that are nobody's (RFC 2606)."""


def is_card(text: str) -> bool:
    """13 to 19 digits with a right check digit (Luhn, ISO/IEC 7812-1), not all the same."""
    digits = [int(digit) for digit in re.sub(r"\D", "", text)]
    doubled = [2 * digit - 9 * (digit > 4) if i % 2 else digit for i, digit in enumerate(reversed(digits))]
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and sum(doubled) % 10 == 0


def is_iban(text: str) -> bool:
    """15 to 34 characters whose number leaves 1 when divided by 97 (ISO 13616)."""
    compact = text.replace(" ", "")
    number = "".join(str(int(character, 36)) for character in compact[4:] + compact[:4])
    return 15 <= len(compact) <= 34 and int(number) % 97 == 1


def is_address(text: str) -> bool:
    return EXAMPLE_DOMAINS.search(text) is None


KINDS: tuple[tuple[str, str, Callable[[str], bool]], ...] = (
    ("an e-mail address", EMAIL, is_address),
    ("a card number", CARD, is_card),
    ("a bank account", IBAN, is_iban),
    ("a telephone number", PHONE, lambda text: True),
    ("a secret token", SECRET, lambda text: True),
)
"""(what it is called, RE2 pattern, whether a match is one)"""


def kinds_in(text: str) -> list[str]:
    """Kinds of personal data in a text, in the order of KINDS."""
    return [name for name, pattern, verify in KINDS if any(verify(found.group()) for found in re.finditer(pattern, text, re.ASCII))]


_HUMAN = """
create or replace temp table human_texts as
with by_people as (
    select e.n, e.episode_id, e.iteration, e.stage from episodes_to_judge e
    where e.is_new and (exists (from annotations a where a.episode_id = e.episode_id and a.origin = 'human' and not a.withdrawn))
)
select n, step_index, source, text from (
    select p.n, s.step_index, unnest(['screen', 'answer', 'prompt']) as source,
        unnest([s.observation, s.response, array_to_string(list_transform(s.messages, lambda m: coalesce(m.content, '')), chr(10))]) as text
    from by_people p join steps s using (episode_id, iteration, stage)
    union all
    select p.n, a.step_index, 'annotation', a.response from by_people p join annotations a using (episode_id)
    where a.origin = 'human' and not a.withdrawn
) where text <> ''
"""


def verdicts(con: duckdb.DuckDBPyConnection, config: QualityConfig) -> Sequence[pa.Table]:
    """`personal_data` (0 where there is any), and `language` where scripts are asked for, of each episode that people had a hand in."""
    if not config.screen_personal_data and not config.scripts:
        return []
    if con.execute("select count(*) from annotations where origin = 'human' and not withdrawn").fetchall() == [(0,)]:
        return []
    con.execute(_HUMAN)
    numbers = [n for (n,) in con.execute("select distinct n from human_texts order by n").fetchall()]
    if not numbers:
        return []
    tables = []
    if config.screen_personal_data:
        tables.append(filter_rows("personal_data", "1", 1.0, _screened(con, numbers)))
    if config.scripts:
        tables.append(filter_rows("language", "1", config.min_script_fraction, _scripts(con, numbers, config)))
    return tables


def _screened(con: duckdb.DuckDBPyConnection, numbers: list[int]) -> Iterator[tuple[int, float, list[str]]]:
    looks = " or ".join(f"regexp_matches(text, '{pattern}')" for _, pattern, _ in KINDS)
    reasons: dict[int, list[str]] = {}
    rows = con.execute(f"select n, step_index, source, text from human_texts where {looks} order by n, step_index, source").fetchall()
    for n, step_index, source, text in rows:
        reasons.setdefault(n, []).extend(f"step {step_index}: {kind} in its {source}" for kind in kinds_in(text))
    for n in numbers:
        found = reasons.get(n, [])
        yield n, 0.0 if found else 1.0, found


def _scripts(con: duckdb.DuckDBPyConnection, numbers: list[int], config: QualityConfig) -> Iterator[tuple[int, float, list[str]]]:
    query = f"""
        select n, {_known_letters(config.scripts)}, {_LETTERS}
        from human_texts where source in ('answer', 'annotation') group by n"""
    try:
        found = {n: (known / letters if letters else 1.0) for n, known, letters in con.execute(query).fetchall()}
    except duckdb.Error as error:
        raise _no_script(config.scripts, error) from error
    for n in numbers:
        share = found.get(n, 1.0)
        reasons = [] if share >= config.min_script_fraction else [f"{share:.0%} of the letters are {' or '.join(config.scripts)}"]
        yield n, share, reasons


def script_fraction(con: duckdb.DuckDBPyConnection, texts: Sequence[str], scripts: Sequence[str]) -> float:
    """Share of the letters of some texts that are of these scripts; 1 where there are no letters, or no scripts. Raises ConfigError."""
    if not scripts:
        return 1.0
    try:
        query = f"select {_known_letters(scripts)}, {_LETTERS} from (select unnest($texts::varchar[]) as text)"
        ((known, letters),) = con.execute(query, {"texts": texts}).fetchall()
    except duckdb.Error as error:
        raise _no_script(scripts, error) from error
    return float(known / letters) if letters else 1.0


_LETTERS = r"sum(length(regexp_replace(text, '\P{L}', '', 'g')))"


def _known_letters(scripts: Sequence[str]) -> str:
    """SQL for the number of letters of these scripts."""
    allowed = "".join(f"\\p{{{script}}}" for script in scripts)
    return f"sum(length(regexp_replace(text, '[^{allowed}]', '', 'g')))"


def _no_script(scripts: Sequence[str], error: Exception) -> ConfigError:
    return ConfigError(f"scripts {', '.join(scripts)}: name scripts as Unicode does, e.g. Latin, Cyrillic, Han ({error})")
