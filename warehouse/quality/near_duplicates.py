"""Near-duplicates among many documents: MinHash and locality-sensitive hashing in numpy, every candidate then compared exactly.

A document is a set of 64-bit token hashes, a row of a CSR matrix (values, offsets). One-permutation hashing (Li, Owen & Zhang 2012) takes
one hash a token: the smallest in each of NUM_BINS ranges is one MinHash; an empty bin borrows from the one before it (densification by
rotation, Shrivastava & Li 2014). Since tokens are sorted anyway, for the comparison, the smallest of a bin is simply the first. Nothing
here knows of episodes but `verdicts`, the filter of trajectories that look alike whatever their actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from warehouse.quality.config import QualityConfig
from warehouse.quality.filter_rows import filter_rows

U64: TypeAlias = "npt.NDArray[np.uint64]"
I64: TypeAlias = "npt.NDArray[np.int64]"
F64: TypeAlias = "npt.NDArray[np.float64]"

NUM_BINS = 256
TOKEN_BITS = 40
"""Bits of a hash that are kept: two documents of 1,000 tokens meet by chance once in a million pairs."""
MAX_DOCUMENTS = 1 << (64 - TOKEN_BITS)
BINS_BITS = NUM_BINS.bit_length() - 1
WINDOW = 32
"""In a run of equal bands, each document is paired with so many before it, and with the first."""
MISSED = 1e-3
"""Share of the pairs exactly at the threshold that hashing may miss; above it the share falls fast."""
_CHUNK = 1 << 14
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Documents:
    """Sets of token hashes in one sorted array of `document << TOKEN_BITS | token`; document i has `sizes[i]` from `starts[i]` on."""

    keys: U64
    starts: I64
    sizes: I64

    @classmethod
    def of(cls, values: U64, offsets: I64) -> Documents:
        """From the tokens of document i at `values[offsets[i]:offsets[i + 1]]`, in any order and repeated or not."""
        num = len(offsets) - 1
        if num > MAX_DOCUMENTS:
            raise ValueError(f"{num} documents, at most {MAX_DOCUMENTS} can be compared at once: compare them by groups")
        owner = np.repeat(np.arange(num, dtype=np.uint64), np.diff(offsets))
        keys = (owner << np.uint64(TOKEN_BITS)) | (values[offsets[0] : offsets[-1]] >> np.uint64(64 - TOKEN_BITS))
        keys.sort()
        keys = keys[np.concatenate(([True], keys[1:] != keys[:-1]))] if len(keys) else keys
        sizes = np.bincount((keys >> np.uint64(TOKEN_BITS)).astype(np.int64), minlength=num)
        return cls(keys, np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64), sizes.astype(np.int64))

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of documents, first < second, by second and first."""

    first: I64
    second: I64
    similarity: F64


def bands_for(threshold: float, missed: float = MISSED) -> tuple[int, int]:
    """(bands, rows): the most rows a band, hence the fewest false candidates, that miss at most `missed` of the pairs at `threshold`."""
    for rows in range(NUM_BINS, 0, -1):
        bands = NUM_BINS // rows
        if (1 - threshold**rows) ** bands <= missed:
            return bands, rows
    return NUM_BINS, 1


def minhashes(documents: Documents, first: int, last: int) -> npt.NDArray[np.uint32]:
    """MinHashes of documents first … last - 1, a row of NUM_BINS each; of an empty document, zeros."""
    low, high = documents.starts[first], documents.starts[last - 1] + documents.sizes[last - 1]
    keys = documents.keys[low:high]
    rest = np.uint64(TOKEN_BITS - BINS_BITS)
    places = keys >> rest
    is_first: npt.NDArray[np.bool_] = np.ones(len(keys), np.bool_)
    is_first[1:] = places[1:] != places[:-1]
    hashes = np.zeros((last - first, NUM_BINS), np.uint32)
    is_full: npt.NDArray[np.bool_] = np.zeros((last - first, NUM_BINS), bool)
    at = places[is_first].astype(np.int64) - (first << BINS_BITS)
    hashes.reshape(-1)[at] = keys[is_first] & ((np.uint64(1) << rest) - np.uint64(1))
    is_full.reshape(-1)[at] = True
    _densify(hashes, is_full)
    return hashes


def _densify(hashes: npt.NDArray[np.uint32], is_full: npt.NDArray[np.bool_]) -> None:
    """Each empty bin takes the value of the next full one before it, round the end."""
    source = np.where(is_full, np.arange(NUM_BINS, dtype=np.int16), np.int16(-1))
    np.maximum.accumulate(source, axis=1, out=source)
    source = np.where(source < 0, source[:, -1:], source)
    hashes[:] = np.take_along_axis(hashes, source.astype(np.int64), axis=1)


def similar_pairs(documents: Documents, threshold: float, groups: U64 | None = None) -> Pairs:
    """All pairs of documents (of one group, where there are groups) whose Jaccard index is at least `threshold`, but for MISSED at most.

    In a crowd of more than WINDOW documents that all look alike each is paired with the WINDOW before it, and with the first.
    """
    signatures = (
        np.concatenate([minhashes(documents, first, min(first + _CHUNK, len(documents))) for first in range(0, len(documents), _CHUNK)])
        if len(documents)
        else np.zeros((0, NUM_BINS), np.uint32)
    )
    codes = _candidates(signatures, threshold, groups, documents.sizes)
    second, first = (part.astype(np.int64) for part in np.divmod(codes, np.uint64(max(1, len(documents)))))
    similarity = (
        np.concatenate([jaccard(documents, first[at : at + _CHUNK], second[at : at + _CHUNK]) for at in range(0, len(first), _CHUNK)])
        if len(first)
        else np.zeros(0)
    )
    found = similarity >= threshold
    return Pairs(first[found], second[found], similarity[found])


def _candidates(signatures: npt.NDArray[np.uint32], threshold: float, groups: U64 | None, sizes: I64) -> U64:
    """Sorted codes `second * num + first` of pairs that share a band and whose MinHashes agree about often enough."""
    num = np.uint64(len(signatures))
    bands, rows = bands_for(threshold)
    found: U64 = np.zeros(0, np.uint64)
    for band in range(bands):
        key = groups.copy() if groups is not None else np.zeros(len(signatures), np.uint64)
        for bin_ in range(band, band + bands * rows, bands):
            key = (key ^ signatures[:, bin_]) * _SPREAD
            key ^= key >> np.uint64(29)
        new = np.unique(_run_pairs(key, num))
        new = new[_absent(new, found)]
        new = new[_agree(signatures, new, num, threshold, sizes)]
        found = np.sort(np.concatenate((found, new)))
    return found


def _run_pairs(key: U64, num: np.uint64) -> U64:
    """Codes of the pairs of documents with one key: neighbours up to WINDOW apart, and the first with each other."""
    order = np.argsort(key, kind="stable")
    ranked = key[order]
    starts = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1]))) if len(key) else np.zeros(0, np.int64)
    lengths = np.diff(np.append(starts, len(key)))
    inside = np.repeat(lengths > 1, lengths)
    order, run = order[inside].astype(np.uint64), np.repeat(np.arange(len(starts)), lengths)[inside]
    codes = []
    for distance in range(1, min(WINDOW, int(lengths.max(initial=1)) - 1) + 1):
        same = run[distance:] == run[:-distance]
        codes.append(order[distance:][same] * num + order[:-distance][same])
    heads = np.repeat(order[np.flatnonzero(np.diff(run, prepend=-1))], lengths[lengths > 1]) if len(order) else order
    far = heads != order
    codes.append(order[far] * num + heads[far])
    return np.concatenate(codes)


def _absent(codes: U64, known: U64) -> npt.NDArray[np.bool_]:
    at = np.searchsorted(known, codes)
    present: npt.NDArray[np.bool_] = np.zeros(len(codes), bool)
    inside = at < len(known)
    present[inside] = known[at[inside]] == codes[inside]
    return ~present


def _agree(signatures: npt.NDArray[np.uint32], codes: U64, num: np.uint64, threshold: float, sizes: I64) -> npt.NDArray[np.bool_]:
    """Whether two documents' MinHashes agree as often as `threshold` leads to expect, less five standard deviations."""
    result = np.zeros(len(codes), bool)
    for at in range(0, len(codes), _CHUNK):
        part = codes[at : at + _CHUNK]
        first, second = (part % num).astype(np.int64), (part // num).astype(np.int64)
        least, most = np.minimum(sizes[first], sizes[second]), np.maximum(sizes[first], sizes[second])
        agreeing = (signatures[first] == signatures[second]).mean(axis=1)
        # Bins beyond the number of tokens are copies of others: they add nothing.
        num_bins = np.clip(least, 1, NUM_BINS)
        enough = threshold - 5 * np.sqrt(threshold * (1 - threshold) / num_bins)
        result[at : at + _CHUNK] = (agreeing >= enough) & (least >= threshold * most)
    return result


def jaccard(documents: Documents, first: I64, second: I64) -> F64:
    """Exact Jaccard index of each pair; of two empty documents, 1."""
    swap = documents.sizes[first] > documents.sizes[second]
    small, large = np.where(swap, second, first), np.where(swap, first, second)
    sizes = documents.sizes[small]
    pair = np.repeat(np.arange(len(small)), sizes)
    inside = np.arange(len(pair)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    tokens = documents.keys[documents.starts[small][pair] + inside] & np.uint64((1 << TOKEN_BITS) - 1)
    wanted = (large[pair].astype(np.uint64) << np.uint64(TOKEN_BITS)) | tokens
    at = np.minimum(np.searchsorted(documents.keys, wanted), max(0, len(documents.keys) - 1))
    shared = np.bincount(pair[documents.keys[at] == wanted], minlength=len(small)) if len(pair) else np.zeros(len(small))
    union = documents.sizes[first] + documents.sizes[second] - shared
    result: F64 = np.where(union > 0, shared / np.maximum(union, 1), 1.0)
    return result


def nearest_original(pairs: Pairs, num: int, threshold: float) -> tuple[F64, I64]:
    """For each document its most similar original before it (similarity 0, -1 where there is none). A document that is at least
    `threshold` like an original is not an original itself; of equally similar ones the last counts."""
    best, other = np.zeros(num), np.full(num, -1, np.int64)
    is_original = [True] * num
    order = np.lexsort((pairs.first, pairs.second))
    columns = (column[order].tolist() for column in (pairs.first, pairs.second, pairs.similarity))
    for first, second, similarity in zip(*columns, strict=True):
        if is_original[first] and similarity >= best[second]:
            best[second], other[second] = similarity, first
            if similarity >= threshold:
                is_original[second] = False
    return best, other


def to_documents(lists: pa.ChunkedArray | pa.ListArray) -> Documents:
    """From an Arrow column of lists of 64-bit hashes."""
    array = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    return Documents.of(array.values.to_numpy(), array.offsets.to_numpy().astype(np.int64))


def verdicts(con: duckdb.DuckDBPyConnection, config: QualityConfig) -> Sequence[pa.Table]:
    """The filter `near_duplicate`: 1 - similarity of all that an episode saw and did to the nearest earlier original of its task, whatever
    the order of its actions. Nothing where `min_trajectory_novelty` is 0."""
    if not config.min_trajectory_novelty:
        return []
    table = con.sql("""
        with compared as (select n, episode_id, iteration, stage from episodes_to_judge where split = 'train' and outcome <> 'crashed'),
        seen as (
            select e.n, unnest(string_split(s.observation, chr(10))) as line
            from steps s join compared e on e.episode_id = s.episode_id and e.iteration = s.iteration and e.stage = s.stage
        ),
        seen_and_done as (
            select n, hash(line) as token from seen
            union all select n, signature from actions_taken semi join compared using (n)
        ),
        documents as (select n, list(distinct token) as tokens from seen_and_done group by n)
        select n, episode_id, is_new, hash(task_id, purpose) as task, tokens
        from documents join episodes_to_judge using (n) order by iteration, purpose, episode_id""").to_arrow_table()
    threshold = 1 - config.min_trajectory_novelty
    pairs = similar_pairs(to_documents(table["tokens"]), threshold, table["task"].to_numpy())
    best, other = nearest_original(pairs, table.num_rows, threshold)
    ids, numbers, is_new = (table[name].to_pylist() for name in ("episode_id", "n", "is_new"))
    return [
        filter_rows(
            "near_duplicate",
            "2",
            config.min_trajectory_novelty,
            (
                (n, 1 - float(best[i]), [f"{best[i]:.2f} like {ids[other[i]]}"] if best[i] > threshold else [])
                for i, n in enumerate(numbers)
                if is_new[i]
            ),
        )
    ]
