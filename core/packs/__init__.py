"""Task packs: tasks with their files and checks, read from and written to the formats of other programs."""

from __future__ import annotations

from core.packs.model import Pack, PackFile, PackTask, changes
from core.packs.registry import READS, WRITES, read_pack, write_pack
from core.packs.split import with_split

__all__ = ["READS", "WRITES", "Pack", "PackFile", "PackTask", "changes", "read_pack", "with_split", "write_pack"]
