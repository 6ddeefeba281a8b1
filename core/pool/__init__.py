"""The data pool: the only owner of DuckDB. Others import ``Pool``."""

from core.pool.pool import Pool

__all__ = ["Pool"]
