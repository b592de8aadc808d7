"""Quality of running text that nobody of ours wrote: rules on its words and lines as C4 and Gopher have them (Raffel et al. 2020,
arXiv 1910.10683; Rae et al. 2021, arXiv 2112.11446, appendix A), its language by the commonest words, and near-duplicates among texts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from warehouse.core.errors import ConfigError
from warehouse.quality.near_duplicates import Documents, nearest_original, similar_pairs

Share = Annotated[float, Field(ge=0, le=1)]
SHINGLE_WORDS = 3
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_COMMONEST = {
    "en": "the of and to in is that it for you with this are be or can not as if from",
    "de": "der die und das ist nicht mit den von ein eine für sich auf werden wird oder kann sie im",
    "fr": "le la les des et est une que pour dans vous ce qui pas sur avec ou sont peut aux",
    "es": "el los las que una para con se por es del como puede más este está son su ser al",
    "it": "il di che della per una non sono con gli può questo è nel alla si come dei essere più",
    "nl": "het een van en de dat niet zijn voor met wordt kan door deze aan te bij ook naar worden",
    "pt": "o os que uma para com não por se são do da em como pode mais este ser na ou",
}
COMMONEST = {name: frozenset(words.split()) for name, words in _COMMONEST.items()}
"""Words by which a language is detected: those that are most frequent in running text."""


class TextQuality(BaseModel):
    """What a text must be to be learned from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_words: Annotated[int, Field(ge=1, description="shorter ones are left out")] = 20
    min_letters: Annotated[Share, Field(description="share of its characters, spaces aside, that are letters")] = 0.6
    min_word_letters: Annotated[float, Field(ge=1, description="mean length of its words")] = 3.0
    max_word_letters: Annotated[float, Field(ge=1, description="mean length of its words")] = 10.0
    max_repeated_lines: Annotated[Share, Field(description="share of its lines that it has had before")] = 0.3
    languages: Annotated[tuple[str, ...], Field(description="it must be in one of these; none: in any")] = ()
    max_similarity: Annotated[Share, Field(description="likeness to an earlier text from which it counts as its near-duplicate")] = 0.8


def quality_for(languages: Sequence[str]) -> TextQuality:
    """Raises ConfigError for a language whose words are not known."""
    if unknown := sorted(set(languages) - set(COMMONEST)):
        raise ConfigError(f"the language {unknown[0]!r} cannot be detected; known are {', '.join(COMMONEST)}")
    return TextQuality(languages=tuple(languages))


def fault(text: str, asked: TextQuality) -> str | None:
    """Why a text is not good enough, with the figure; None where it is."""
    words = _WORD.findall(text)
    if len(words) < asked.min_words:
        return f"too short: {len(words)} words, fewer than {asked.min_words}"
    packed = "".join(text.split())
    letters = sum(character.isalpha() for character in packed) / len(packed)
    if letters < asked.min_letters:
        return f"mostly signs: {letters:.0%} of it are letters, less than {asked.min_letters:.0%}"
    length = sum(map(len, words)) / len(words)
    if not asked.min_word_letters <= length <= asked.max_word_letters:
        return f"no running text: its words have {length:.1f} letters"
    lines = [line for line in map(str.strip, text.split("\n")) if line]
    repeated = 1 - len(set(lines)) / len(lines)
    if repeated > asked.max_repeated_lines:
        return f"repeats itself: {repeated:.0%} of its lines"
    if asked.languages and (found := language(text)) not in asked.languages:
        return f"in another language: {found or 'unknown'}, not {' or '.join(asked.languages)}"
    return None


def language(text: str) -> str | None:
    """The language whose commonest words it has most of; None where it has fewer than three of them in a hundred."""
    words = Counter(_WORD.findall(text.lower()))
    found = {name: sum(words[word] for word in common) for name, common in COMMONEST.items()}
    best = max(found, key=lambda name: found[name])
    return best if found[best] >= max(2, 0.03 * words.total()) else None


def near_duplicates(texts: Sequence[str], threshold: float) -> dict[int, tuple[int, float]]:
    """Of each text that is at least `threshold` like an original before it, that one and the Jaccard index of their shingles of
    SHINGLE_WORDS words, letter case aside."""
    shingles = [_shingles(text) for text in texts]
    offsets = np.concatenate(([0], np.cumsum([len(each) for each in shingles]))).astype(np.int64)
    documents = Documents.of(np.concatenate([*shingles, np.zeros(0, np.uint64)]), offsets)
    best, other = nearest_original(similar_pairs(documents, threshold), len(texts), threshold)
    return {number: (int(other[number]), float(best[number])) for number in range(len(texts)) if best[number] >= threshold}


def _shingles(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    words = re.findall(r"\w+", text.lower())
    runs = {" ".join(words[at : at + SHINGLE_WORDS]) for at in range(max(1, len(words) - SHINGLE_WORDS + 1))}
    hashes = [int.from_bytes(blake2b(run.encode(), digest_size=8).digest(), "little") for run in sorted(runs)]
    return np.array(hashes, np.uint64)
