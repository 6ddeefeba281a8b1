"""Freed memory goes back to the system, as the kernel counts it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import threading
from core.freememory import EVERY_S, FreeMemory, limit_arenas

def resident_mb():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

limit_arenas()
now = 0.0
free_memory = FreeMemory(clock=lambda: now)
kept = []

def work():
    # Above the interpreter's own small blocks; every 64th stays, so that no heap can shrink at its end.
    blocks = [bytes(2000) for _ in range(20_000)]
    kept.extend(blocks[::64])

for _ in range(3):
    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
early = free_memory()
before = resident_mb()
now = EVERY_S
due = free_memory()
print(early, due, free_memory(), before, resident_mb())
"""


def test_what_was_freed_goes_back_to_the_system():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    early, due, again, before, after = done.stdout.split()
    assert (early, due, again) == ("False", "True", "False")
    assert float(before) - float(after) > 50, f"{before} MiB before, {after} after"
