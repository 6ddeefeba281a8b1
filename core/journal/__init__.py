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
from core.journal.target import LOCAL, Target, fetch_missing, incarnation, open_target
from core.journal.thinning import THIN, thin
from core.journal.watermarks import Watermarks, write_watermarks
from core.journal.writer import Journal

__all__ = [
    "LOCAL",
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
    "Target",
    "Watermarks",
    "cut_unfinished",
    "damages",
    "fetch_missing",
    "head_bytes",
    "incarnation",
    "journal_bytes",
    "open_target",
    "quarantine_bytes",
    "quarantined_damages",
    "read_after",
    "read_all",
    "read_records",
    "read_segment",
    "read_since_mark",
    "thin",
    "write_watermarks",
]
