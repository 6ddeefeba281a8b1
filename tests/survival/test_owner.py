"""The data folder's lock and note beside other processes that look at them; the kernel's ``flock`` is the reference."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from core.errors import AlreadyOwned
from core.owner import NOTE_NAME, OwnerLock, running_service

LOOKS = """
import sys
from pathlib import Path
from core.owner import running_service
print("looks", flush=True)
while True:
    running_service(Path(sys.argv[1]))
"""


def test_who_looks_for_an_owner_refuses_no_start(tmp_path: Path) -> None:
    """``claw-studio doctor`` and every other command look for a running service."""
    OwnerLock.acquire(tmp_path).release()
    with subprocess.Popen([sys.executable, "-c", LOOKS, str(tmp_path)], stdout=subprocess.PIPE, text=True) as looking:
        try:
            assert looking.stdout is not None
            assert looking.stdout.readline() == "looks\n"
            for _ in range(300):
                OwnerLock.acquire(tmp_path).release()
        finally:
            looking.kill()


def test_a_killed_owners_note_is_not_the_next_ones(tmp_path: Path) -> None:
    """While the next one starts, or rebuilds the pool, nobody is sent to an address that anybody may have by now."""
    stale = {"pid": 1, "base_url": "http://127.0.0.1:9", "pages_address": None}
    (tmp_path / NOTE_NAME).write_text(json.dumps(stale))
    lock = OwnerLock.acquire(tmp_path)
    assert running_service(tmp_path) is None
    with pytest.raises(AlreadyOwned, match="process unknown"):
        OwnerLock.acquire(tmp_path)
    lock.announce("http://127.0.0.1:8100")
    note = running_service(tmp_path)
    assert note is not None and note["base_url"] == "http://127.0.0.1:8100"
    lock.release()
