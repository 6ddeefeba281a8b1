"""Python runs this file at each start of a process of the service: a test sets its clocks, in a file.

The file has two numbers: seconds added to the clock of the day, and to the time since the machine's start. A machine
that sleeps adds to both. ``CLOCK_MONOTONIC`` stands still in a sleep, and nobody can set it.
"""

import os
import time
from pathlib import Path

_FILE = Path(os.environ["CLAW_TEST_CLOCKS"])
_time, _clock_gettime = time.time, time.clock_gettime


def _added() -> list[float]:
    return [float(number) for number in _FILE.read_text().split()]


time.time = lambda: _time() + _added()[0]
time.clock_gettime = lambda clock: _clock_gettime(clock) + (_added()[1] if clock == time.CLOCK_BOOTTIME else 0.0)
