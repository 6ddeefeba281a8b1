"""Recipes as versions that are only ever added, and which one each channel uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import InvalidInput, NotFound
from core.pool.content import canonical, decode
from core.pool.database import Cursor, Database, rows, seconds, timestamp


class RecipeBook:
    """The part of ``Pool`` that keeps recipes' versions."""

    _db: Database

    def put_recipe(self, name: str, recipe: Mapping[str, Any], *, author: str = "api") -> int:
        """Add a version unless the newest one is equal; returns the newest version, from 1."""
        if not name.strip():
            raise InvalidInput("A name is needed.", field="name")
        body = canonical(dict(recipe)).decode("utf-8")
        with self._db.write() as cursor:
            found = cursor.execute(
                "SELECT version, recipe FROM recipe_versions WHERE name = ? ORDER BY version DESC LIMIT 1", [name]
            ).fetchone()
            if found is not None and found[1] == body:
                return int(found[0])
            version = 1 if found is None else int(found[0]) + 1
            now = timestamp(self._db.clock())
            cursor.execute("INSERT INTO recipe_versions VALUES (?, ?, ?, ?, ?)", [name, version, body, author, now])
        return version

    def recipe_version(self, name: str, version: int | None = None) -> dict[str, Any]:
        """``{name, version, recipe, author, created_at}``, the newest unless told. NotFound when there is none."""
        with self._db.read() as cursor:
            return _version(cursor, name, version)

    def recipe_versions(self, name: str | None = None) -> list[dict[str, Any]]:
        """All versions, of one name or all, by name and newest first."""
        with self._db.read() as cursor:
            found = rows(
                cursor,
                "SELECT * FROM recipe_versions WHERE ?::VARCHAR IS NULL OR name = ? ORDER BY name, version DESC",
                [name, name],
            )
        return [_public(row) for row in found]

    def activate_recipe(self, channel: str, name: str, version: int | None = None) -> dict[str, Any]:
        """A channel's fetches use this recipe from now on; without a version always the newest."""
        with self._db.write() as cursor:
            found = _version(cursor, name, version)
            cursor.execute(
                "INSERT INTO active_recipes VALUES (?, ?, ?, ?)",
                [channel, name, version, timestamp(self._db.clock())],
            )
        return found

    def active_recipe(self, channel: str) -> dict[str, Any] | None:
        """The channel's recipe version, or None when nobody chose one."""
        with self._db.read() as cursor:
            found = cursor.execute(
                "SELECT name, version FROM active_recipes WHERE channel = ? ORDER BY activated_at DESC, rowid DESC"
                " LIMIT 1",
                [channel],
            ).fetchone()
            return None if found is None else _version(cursor, found[0], found[1])


def _version(cursor: Cursor, name: str, version: int | None) -> dict[str, Any]:
    found = rows(
        cursor,
        "SELECT * FROM recipe_versions WHERE name = ? AND (?::INTEGER IS NULL OR version = ?)"
        " ORDER BY version DESC LIMIT 1",
        [name, version, version],
    )
    if not found:
        what = f"recipe {name!r}" if version is None else f"version {version} of recipe {name!r}"
        raise NotFound(f"No {what}.", field="recipe_name", hint="GET /api/v1/recipes lists them.")
    return _public(found[0])


def _public(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "recipe": decode(row["recipe"]), "created_at": seconds(row["created_at"])}
