"""Journal -> pool: parse, link, delta-code, insert, exactly once. Others import ``Ingest``."""

from core.ingest.thread import Ingest

__all__ = ["Ingest"]
