"""The policy version in force, which staleness counts from: one definition for pages, filters, plans and versions.

The version that a trainer last put in force (a weight sync that is under way is not in force yet); where none was
reported, the newest version that the channel's steps show. Staleness of a step is that version minus the one that its
call began with; a trajectory is as stale as its stalest step.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.pool.store.database import Cursor
from core.types import PolicyEvent, PolicyEventKind

_REPORTED = "(SELECT arg_max(version, (created_at, event_id)) FROM policy_events WHERE event <> 'sync_started')"
_SHOWN = "SELECT channel, max(policy_version_max) AS newest FROM trajectory_state GROUP BY channel"


def version_in_force_sql(channel: str) -> str:
    """SQL: the version in force in the channel that this SQL names; NULL where none is known."""
    return f"coalesce({_REPORTED}, (SELECT map_from_entries(list((channel, newest))) FROM ({_SHOWN}))[{channel}])"


def versions_in_force(cursor: Cursor) -> dict[str, int | None]:
    """The same for all channels that have a trajectory."""
    return dict(cursor.execute(f"SELECT channel, coalesce({_REPORTED}, newest) FROM ({_SHOWN})").fetchall())


def version_in_force(cursor: Cursor, channel: str) -> int | None:
    """The same for one channel, which may have no step yet."""
    versions = cursor.execute(f"SELECT {version_in_force_sql('?::VARCHAR')}", [channel]).fetchall()
    return None if versions[0][0] is None else int(versions[0][0])


def reported_version(events: Sequence[PolicyEvent]) -> int | None:
    """The result of ``_REPORTED`` for events in the order in which they were stored."""
    in_force = [event for event in events if event.event != PolicyEventKind.SYNC_STARTED]
    return max(enumerate(in_force), key=lambda one: (one[1].created_at, one[0]))[1].version if in_force else None
