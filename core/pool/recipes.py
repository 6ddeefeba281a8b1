"""``pool.recipes``: append-only versions of recipes, and the active one of each channel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import InvalidInput, NotFound
from core.pool.store.changes import NO_CHANGES
from core.pool.store.content import canonical, decode
from core.pool.store.database import Cursor, Database, rows, seconds, timestamp

_NEWEST = """
SELECT * FROM recipe_versions QUALIFY row_number() OVER (PARTITION BY name ORDER BY version DESC) = 1 ORDER BY name
"""


class Recipes:
    """``pool.recipes``: named recipes. A version is ``{name, version, recipe, author, created_at}``."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def save(self, name: str, recipe: Mapping[str, Any], *, author: str = "api") -> int:
        """Add a version unless the newest one is equal; returns the newest version's number, from 1."""
        name = name.strip()
        if not name:
            raise InvalidInput("A name is needed.", field="name")
        body = canonical(dict(recipe)).decode("utf-8")
        with self._db.write(NO_CHANGES) as cursor:
            newest = cursor.execute(
                "SELECT version, recipe FROM recipe_versions WHERE name = ? ORDER BY version DESC LIMIT 1", [name]
            ).fetchone()
            if newest is not None and newest[1] == body:
                return int(newest[0])
            version = 1 if newest is None else int(newest[0]) + 1
            now = timestamp(self._db.clock())
            cursor.execute("INSERT INTO recipe_versions VALUES (?, ?, ?, ?, ?)", [name, version, body, author, now])
        return version

    def all(self) -> list[dict[str, Any]]:
        """The newest version of each recipe, by name."""
        with self._db.read() as cursor:
            return [_public(row) for row in rows(cursor, _NEWEST)]

    def versions(self, name: str) -> list[dict[str, Any]]:
        """All versions of a recipe, newest first. NotFound when there is none."""
        with self._db.read() as cursor:
            versions = rows(cursor, "SELECT * FROM recipe_versions WHERE name = ? ORDER BY version DESC", [name])
        if not versions:
            raise _no_recipe(name, None)
        return [_public(row) for row in versions]

    def get(self, name: str, version: int | None = None) -> dict[str, Any]:
        """One version, by default the newest. NotFound when there is none."""
        with self._db.read() as cursor:
            return _version(cursor, name, version)

    def activate(
        self, channel: str, name: str | None, version: int | None = None, *, author: str = "api"
    ) -> dict[str, Any] | None:
        """A channel's next fetches use this recipe; without a version its newest at that time; no name: none."""
        with self._db.write(NO_CHANGES) as cursor:
            recipe = None if name is None else _version(cursor, name, version)
            cursor.execute(
                "INSERT INTO active_recipes VALUES (?, ?, ?, ?, ?)",
                [channel, name, None if name is None else version, author, timestamp(self._db.clock())],
            )
        return recipe

    def active(self, channel: str) -> dict[str, Any] | None:
        """The channel's active recipe version, or None."""
        with self._db.read() as cursor:
            newest = cursor.execute(
                "SELECT name, version FROM active_recipes WHERE channel = ? ORDER BY rowid DESC LIMIT 1",
                [channel],
            ).fetchone()
            return None if newest is None or newest[0] is None else _version(cursor, newest[0], newest[1])

    def all_active(self) -> dict[str, dict[str, Any]]:
        """Channel -> its recipe version."""
        with self._db.read() as cursor:
            channels = cursor.execute("SELECT DISTINCT channel FROM active_recipes ORDER BY channel").fetchall()
        recipes = {channel: self.active(channel) for (channel,) in channels}
        return {channel: recipe for channel, recipe in recipes.items() if recipe is not None}


def _version(cursor: Cursor, name: str, version: int | None) -> dict[str, Any]:
    versions = rows(
        cursor,
        "SELECT * FROM recipe_versions WHERE name = $name AND ($version::INTEGER IS NULL OR version = $version)"
        " ORDER BY version DESC LIMIT 1",
        {"name": name, "version": version},
    )
    if not versions:
        raise _no_recipe(name, version)
    return _public(versions[0])


def _no_recipe(name: str, version: int | None) -> NotFound:
    what = f"recipe {name!r}" if version is None else f"version {version} of recipe {name!r}"
    return NotFound(f"No {what}.", field="name", hint="GET /api/v1/recipes lists them.")


def _public(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "recipe": decode(row["recipe"]), "created_at": seconds(row["created_at"])}
