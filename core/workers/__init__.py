"""Several gateway processes on one port: each takes calls and writes its own journal, one process owns all else."""

from core.workers.fleet import Fleet

__all__ = ["Fleet"]
