"""Adopting a reward policy for a channel, and letting it go."""

from __future__ import annotations

from typing import Any

from core.errors import InvalidInput, NotFound
from core.pool.adoption import adopted, set_newest_word
from core.pool.database import Database, seconds, timestamp
from core.pool.derive import judge, live_annotations, note_groups, trajectory_opinions


class Adoption:
    """The part of ``Pool`` that says whose reward counts in a channel."""

    _db: Database

    def adopt_reward_policy(
        self, channel: str, name: str | None, version: int | None = None, *, author: str = "api"
    ) -> dict[str, Any] | None:
        """From now on this policy decides the channel's trajectory rewards; no name: the newest word again.

        Without a version it is the newest at this time, and stays that. What is stored of words never changes, so
        adopting another policy brings back whatever it makes of them. NotFound when there is no such policy.
        """
        if name is None and version is not None:
            raise InvalidInput("A version needs a name.", field="name")
        with self._db.write() as cursor:
            if name is not None:
                found = cursor.execute(
                    "SELECT max(version) FROM reward_policies WHERE name = $name"
                    " AND ($version::INTEGER IS NULL OR version = $version)",
                    {"name": name, "version": version},
                ).fetchall()
                if found[0][0] is None:
                    raise NotFound(
                        f"No reward policy {name!r}.", field="name", hint="GET /api/v1/rewards lists what there is."
                    )
                version = int(found[0][0])
            cursor.execute(
                "INSERT INTO adopted_reward_policies VALUES (?, ?, ?, ?, ?)",
                [channel, name, version, author, timestamp(self._db.clock())],
            )
            cursor.execute(
                "CREATE OR REPLACE TEMP TABLE scope AS SELECT trajectory_id FROM trajectory_state WHERE channel = ?",
                [channel],
            )
            if name is None:
                set_newest_word(cursor)
            note_groups(cursor)
            live_annotations(cursor)
            trajectory_opinions(cursor)
            judge(cursor)
        return self.adopted_reward_policy(channel)

    def adopted_reward_policy(self, channel: str) -> dict[str, Any] | None:
        """``{channel, name, version, policy, author, adopted_at}``, or None: the newest word counts."""
        return self.adopted_reward_policies().get(channel)

    def adopted_reward_policies(self) -> dict[str, dict[str, Any]]:
        """Channel -> the policy that it has adopted."""
        with self._db.read() as cursor:
            return {row["channel"]: {**row, "adopted_at": seconds(row["adopted_at"])} for row in adopted(cursor)}
