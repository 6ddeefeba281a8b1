"""The HTTP API for producers and trainers, under ``/api/v1`` (docs/architecture.md, "HTTP contract")."""

from core.api.app import create_api
from core.api.handling import ApiDeps

__all__ = ["ApiDeps", "create_api"]
