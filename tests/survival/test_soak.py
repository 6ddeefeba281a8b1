"""What the long run calls growth: planted leaks are found among noise, and noise is none."""

from __future__ import annotations

import itertools
import random
import statistics
from typing import Any

import pytest

from bench.soak.growth import MAX_DISK_KB, MAX_GROWTH, judged, slope

CALLS_A_LOOK = 200
LEAKS = {
    "memory, bytes a call": ("memory_mb", 4096 / (1 << 20)),
    "threads, more at the end": ("threads", 1 / 500),
    "descriptors, more at the end": ("descriptors", 1 / 500),
    "processes, more at the end": ("processes", 1 / 2000),
    "journal on disk, KB a call": ("journal_mb", 2 * MAX_DISK_KB["journal_mb"] / 1024),
    "pool on disk, KB a call": ("pool_mb", 2 * MAX_DISK_KB["pool_mb"] / 1024),
    "opinions on disk, KB a call": ("opinions_mb", 2 * MAX_DISK_KB["opinions_mb"] / 1024),
}


def looks(seed: int, **leak: float) -> list[dict[str, Any]]:
    """A run of 48,000 calls: caches fill, memory and files rise and fall, backups come between, and what is planted."""
    draw = random.Random(seed)
    rows, cpu_s = [], 0.0
    for number in range(240):
        calls = number * CALLS_A_LOOK
        heavy = draw.random() < 0.1
        cpu_s += CALLS_A_LOOK * 0.015 * draw.uniform(0.7, 1.5) + 2 * heavy
        level = {
            "memory_mb": min(200 + calls / 60, 480) + draw.gauss(0, 20) + 150 * heavy,
            "threads": 40 + draw.randint(-4, 4),
            "descriptors": 32 + draw.randint(-4, 4) + 30 * heavy,
            "processes": 1 + draw.randint(0, 1),
            "journal_mb": calls * 0.008,
            "pool_mb": calls * 0.004 + (number % 9) * 8,
            "opinions_mb": calls * 0.0002,
        }
        planted = {name: value + leak.get(name, 0.0) * calls for name, value in level.items()}
        rows.append({"calls": calls, "cpu_s": cpu_s, **planted})
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_a_run_without_a_leak_has_not_grown(seed: int) -> None:
    assert [one for one in judged(looks(seed), room_mb=0.0) if one["grown"]] == []


@pytest.mark.parametrize("what", LEAKS)
@pytest.mark.parametrize("seed", range(5))
def test_a_planted_leak_is_found_and_named(what: str, seed: int) -> None:
    name, a_call = LEAKS[what]
    assert [one["what"] for one in judged(looks(seed, **{name: a_call}), room_mb=0.0) if one["grown"]] == [what]


def test_calls_that_take_ever_more_time_are_found() -> None:
    run = looks(1)
    for look in run:
        look["cpu_s"] += 1e-15 * look["calls"] ** 4
    assert [one["what"] for one in judged(run, room_mb=0.0) if one["grown"]] == ["processor time of a call, times"]


def test_room_is_what_bounded_caches_may_still_take() -> None:
    run = looks(1, memory_mb=0.005)
    assert judged(run, room_mb=0.0)[0]["grown"] and not judged(run, room_mb=200.0)[0]["grown"]


def test_the_slope_is_the_median_of_all_pairs() -> None:
    draw = random.Random(3)
    points = [(float(n), draw.gauss(0, 1) + n / 7) for n in range(30)]
    pairs = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points, 2)]
    assert slope(*zip(*points, strict=True)) == pytest.approx(statistics.median(pairs))
    assert slope([1, 1, 1], [2, 3, 4]) == 0.0
    assert set(MAX_GROWTH) == {"threads", "descriptors", "processes"}
