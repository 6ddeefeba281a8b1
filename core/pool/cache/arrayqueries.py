"""Sorted pages and histogram bins of a column in memory, equal to ORDER BY with LIMIT, and GROUP BY, in SQL."""

from __future__ import annotations

import numpy as np


def page_of(step_ids: np.ndarray, keys: np.ndarray, *, descending: bool, offset: int, limit: int) -> np.ndarray:
    """``step_id`` of the rows ``offset`` to ``offset + limit`` in the order of the keys, without sorting the rest.

    Unknown keys come last; equal ones follow ``step_id``, in the same direction as the keys.

    Args:
        step_ids: int64 [n], ascending.
        keys: float64 [n], NaN where unknown.
    """
    if descending:
        step_ids, keys = step_ids[::-1], -keys[::-1]
    unknown = np.isnan(keys)
    n_unknown = int(unknown.sum())
    n_known = keys.size - n_unknown
    ids = step_ids[~unknown] if n_unknown else step_ids
    known = _slice(keys[~unknown] if n_unknown else keys, offset, min(offset + limit, n_known))
    first = max(0, offset - n_known)
    rest = step_ids[unknown][first : max(0, offset + limit - n_known)]
    return np.concatenate([ids[known], rest])


def _slice(keys: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Places of the keys with rank ``begin`` to ``end``; equal keys rank by their place."""
    if begin >= end:
        return np.zeros(0, np.int64)
    parted = np.partition(keys, [begin, end - 1])
    low, high = parted[begin], parted[end - 1]
    equal = np.flatnonzero(keys == low)
    before = begin - int((keys < low).sum())
    if low == high:
        return equal[before : before + end - begin]
    between = np.flatnonzero((keys > low) & (keys < high))
    between = between[np.argsort(keys[between], kind="stable")]
    ranked = np.concatenate([equal[before:], between])
    return np.concatenate([ranked, np.flatnonzero(keys == high)[: end - begin - ranked.size]])


def bins_of(values: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Equal bins from the least to the greatest finite value: (low float64, high float64, n int64), each [bins].

    The last bin includes its upper edge. None when there is no finite value.
    """
    values = values[np.isfinite(values)]
    if not values.size:
        return None
    low, high = values.min(), values.max()
    width = high - low if high > low else np.float64(1.0)
    places = np.minimum((values - low) / width * bins, bins - 1).astype(np.int64)
    at = np.arange(bins + 1, dtype=np.float64)
    edges = low + width * at / bins
    return edges[:-1], edges[1:], np.bincount(places, minlength=bins)
