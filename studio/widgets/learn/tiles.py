"""The newest rollouts as tiles: a row per prompt group, a tile per attempt, coloured by reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from studio import state
from studio.kit.format import escape, number

MOST_GROUPS = 16


def tiles_html(rows: Sequence[Mapping[str, Any]]) -> str:
    """Tiles of ``pool.learning.newest``. A link opens the attempt or the group in Inspect."""
    known = [row["reward"] for row in rows if row["reward"] is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    low, high = min(low, 0.0), max(high, 1.0)
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["prompt_uid"], []).append(row)
    lines = []
    for group, attempts in list(groups.items())[:MOST_GROUPS]:
        scored = [row["reward"] for row in attempts if row["reward"] is not None]
        mean = number(sum(scored) / len(scored)) if scored else "—"
        label = str(attempts[0]["prompt_preview"] or group)
        cells = "".join(_tile(row, low, high) for row in attempts)
        lines.append(
            f'<a class="k" href="{escape(state.link("inspect", group=group))}" target="_self" title="{escape(label)}">'
            f'{escape(label)}</a><div class="row">{cells}</div><div class="n">{mean}</div>'
        )
    return f'<div class="cs-tiles">{"".join(lines)}</div>'


def _tile(row: Mapping[str, Any], low: float, high: float) -> str:
    reward = row["reward"]
    text = "not scored yet" if reward is None else f"reward {number(reward)}"
    share = 0.0 if reward is None else (reward - low) / (high - low)
    tone = "open" if reward is None else "good" if share >= 0.5 else "bad"
    strength = 100 if reward is None else round(35 + 65 * abs(2 * share - 1))
    link = escape(state.link("inspect", trajectory=row["trajectory_uid"]))
    tip = escape(f"{text}, {row['n_steps']} steps")
    return (
        f'<a class="{tone}" style="--strength:{strength}%" href="{link}" target="_self" title="{tip}"'
        f' aria-label="{tip}"></a>'
    )
