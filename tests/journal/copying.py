"""A program that writes a journal with a target, for tests that kill it. It needs nothing but ``core.journal``.

make ADDRESS OPTIONS                       creates the bucket
write ADDRESS OPTIONS FOLDER LINES BEGIN   appends the lines of a file from a number on, eight at a time, and prints
                                           the number of each when it is acknowledged
fetch ADDRESS OPTIONS FOLDER               copies what the folder lacks, and prints how many bytes that was
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

from core.journal import Journal, fetch_missing, incarnation, open_target

AT_ONCE = 8


def main() -> None:
    """See the module."""
    what, address = sys.argv[1:3]
    options = json.loads(sys.argv[3])
    if what == "make":
        import fsspec

        files, path = fsspec.core.url_to_fs(address, **options)
        files.mkdir(path.split("/")[0])
        return
    target = open_target(address, options)
    assert target is not None
    folder = Path(sys.argv[4])
    if what == "fetch":
        print(fetch_missing(target, folder))
        return
    journal = Journal(folder, writer=incarnation("n1"), segment_bytes=1 << 16, target=target)
    free = threading.Semaphore(AT_ONCE)
    printing = threading.Lock()

    def acknowledged(number: int, future: Future[tuple[str, int]]) -> None:
        future.result()
        with printing:
            print(number, flush=True)
        free.release()

    lines = Path(sys.argv[5]).read_bytes().splitlines()
    for number in range(int(sys.argv[6]), len(lines)):
        free.acquire()
        journal.append(lines[number]).add_done_callback(lambda future, number=number: acknowledged(number, future))
    journal.close()


if __name__ == "__main__":
    main()
