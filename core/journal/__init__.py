"""The journal: a durable append-only log of captured calls, in segments with one writer each and many readers."""

from core.journal.layout import MAGIC, SUFFIX, head_bytes
from core.journal.pending import Position
from core.journal.reader import (
    Gap,
    JournalItem,
    JournalReader,
    Record,
    cut_unfinished,
    damages,
    journal_bytes,
    read_after,
    read_all,
    read_records,
    read_segment,
    read_since_mark,
)
from core.journal.salvage import Damage, quarantine_bytes, quarantined_damages
from core.journal.thinning import THIN, thin
from core.journal.writer import Journal

__all__ = [
    "MAGIC",
    "SUFFIX",
    "THIN",
    "Damage",
    "Gap",
    "Journal",
    "JournalItem",
    "JournalReader",
    "Position",
    "Record",
    "cut_unfinished",
    "damages",
    "head_bytes",
    "journal_bytes",
    "quarantine_bytes",
    "quarantined_damages",
    "read_after",
    "read_all",
    "read_records",
    "read_segment",
    "read_since_mark",
    "thin",
]
