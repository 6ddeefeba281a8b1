"""Bloom filters of text search on disk: their bits in an unnamed file, mapped into memory.

The filters take a tenth of the messages' bytes: gigabytes for ten million steps. A search reads one row of bits per
trigram, so nearly all of the file is seldom read, and the operating system may drop its pages from memory.

The file has no name and ends with the process. Filters that outlive the process would have to be proved to belong to
the same messages: a pool that is made again from its journal numbers them anew.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from core.pool.query.trigrambloom import TrigramBloom

SPARE_BYTES = 2 << 30
"""Free bytes of the disk below which nothing is written."""


class BloomFile:
    """Merges filters and moves their bits to disk. Not thread-safe.

    Args:
        folder: where the file is made; None: the folder of temporary files.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder or Path(tempfile.gettempdir())
        self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (lives as long as the filters)
        self.n_bytes = 0

    def merged(self, blooms: Sequence[TrigramBloom]) -> TrigramBloom:
        """One filter in place of consecutive ones, its bits on disk.

        Raises:
            OSError: the disk is full, or less than ``SPARE_BYTES`` would stay free.
        """
        bits = np.concatenate([each.bits for each in blooms], axis=1)
        firsts = np.concatenate([*(each.firsts[:-1] for each in blooms), blooms[-1].firsts[-1:]])
        if shutil.disk_usage(self._folder).free - bits.nbytes < SPARE_BYTES:
            raise OSError(f"less than {SPARE_BYTES >> 30} GiB would stay free in {self._folder}")
        self._file.seek(self.n_bytes)
        self._file.write(bits.data)
        self._file.flush()
        on_disk = np.memmap(self._file, np.uint8, mode="r", offset=self.n_bytes, shape=bits.shape)
        self.n_bytes += bits.nbytes
        return replace(blooms[-1], bits=on_disk, firsts=firsts)
