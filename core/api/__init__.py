"""The HTTP surface for producers and trainers, under ``/api/v1`` (DESIGN, "The HTTP contract")."""

from core.api.app import ApiDeps, create_api

__all__ = ["ApiDeps", "create_api"]
