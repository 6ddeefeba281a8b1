"""Makes a pool of ten million steps: a rich pool of 200,000, copied fifty times with names and times of its own.

    python bench/pool/grow.py [--copies 50] [--trajectories 2000] [--seed 0]

Trajectories of 100 steps, whose contexts grow to 20,000 tokens. ``generate.py`` would take hours for as many. A copy
has its own trajectories, groups, ids and times; token ids, words and hashes are those of the first. Nothing is
shared on the disk: each row of each table is written.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

import duckdb

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.pool.enrich import ensure_rich  # noqa: E402
from bench.pool.generate import CACHE, VERSIONS  # noqa: E402

N_STEPS = 100
NEW_TOKENS = 80
"""With 100 sampled ones a step, 100 steps grow from 2,000 to 20,000 tokens."""
ONCE = {"schema_migrations", "policy_events", "actions", "action_events"}
"""Tables that are not per trajectory."""
GROUPED = 8
GENERATED = "tags_json"
"""Where this column stands, ``tags`` is derived from it."""


def versions(columns: set[str], number: str, n: int) -> dict[str, str]:
    """The expression of each version column: versions follow each other over all ``n`` trajectories."""
    names = {"policy_version", "policy_version_min", "policy_version_max"} & columns
    return {name: f"CASE WHEN {name} >= 0 THEN ({number} - 1) * {VERSIONS} // {n} END" for name in sorted(names)}


def replacements(columns: set[str], shifts: dict[str, int], copy: int, n: int, n_copies: int) -> list[str]:
    """``expression AS column`` of each column that differs in the copy with this number, of ``n`` trajectories each."""
    made = [f"{name} + {shift} AS {name}" for name, shift in shifts.items() if name in columns]
    # t000017 or t000017.3
    uid = "'t' || lpad((substr({0}, 2, 6)::INTEGER + {1})::VARCHAR, 6, '0') || substr({0}, 8) AS {0}"
    made += [uid.format(name, copy * n) for name in ("step_uid", "trajectory_uid") if name in columns]
    if "prompt_uid" in columns:
        shift = copy * n // GROUPED
        made.append(f"'g' || lpad((substr(prompt_uid, 2)::INTEGER + {shift})::VARCHAR, 5, '0') AS prompt_uid")
    for name in ("created_at", "ingested_at", "started_at", "ended_at"):
        if name in columns:
            made.append(f"{name} + INTERVAL {copy * n} SECOND AS {name}")
    made += [
        f"{version} AS {name}"
        for name, version in versions(columns, f"{copy * n} + trajectory_id", n * n_copies).items()
    ]
    if "new_message_ids" in columns:
        shift = shifts["message_id"]
        made.append(f"list_transform(new_message_ids, lambda x: x + {shift}) AS new_message_ids")
        made.append(f"response_message_id + {shift} AS response_message_id")
    return made


def grow(seed_pool: Path, path: Path, n_copies: int, n_trajectories: int) -> None:
    """Write the copies of ``seed_pool`` into a new pool at ``path``."""
    shutil.copy(seed_pool, path)
    connection = duckdb.connect(str(path), config={"threads": 1, "memory_limit": "3GB"})
    connection.execute(f"ATTACH '{seed_pool}' AS seed (READ_ONLY)")
    found = connection.execute(
        "SELECT table_name, list(column_name) FROM duckdb_columns() WHERE database_name = 'seed'"
        " AND schema_name = 'main' GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    tables = {
        name: set(columns)
        for name, columns in found
        if name not in ONCE and connection.execute(f"SELECT count(*) FROM seed.{name}").fetchall() != [(0,)]
    }

    def highest(table: str, column: str) -> int:
        return int(connection.execute(f"SELECT max({column}) FROM seed.{table}").fetchall()[0][0])

    ids = {
        "step_id": ("steps", "step_id"),
        "parent_step_id": ("steps", "step_id"),
        "trajectory_id": ("trajectories", "trajectory_id"),
        "event_id": ("trajectory_events", "event_id"),
        "message_id": ("messages", "message_id"),
        "annotation_id": ("annotations", "annotation_id"),
    }
    each = {name: highest(*where) for name, where in ids.items()}
    began = time.perf_counter()
    for table, columns in tables.items():
        if sets := versions(columns, "trajectory_id", n_copies * n_trajectories):
            connection.execute(f"UPDATE {table} SET " + ", ".join(f"{name} = {value}" for name, value in sets.items()))
    for copy in range(1, n_copies):
        shifts = {name: copy * highest_id for name, highest_id in each.items()}
        for table, columns in tables.items():
            changed = ", ".join(replacements(columns, shifts, copy, n_trajectories, n_copies))
            kept = "* EXCLUDE (tags)" if GENERATED in columns else "*"
            connection.execute(f"INSERT INTO {table} BY NAME SELECT {kept} REPLACE ({changed}) FROM seed.{table}")
        print(f"copy {copy + 1} of {n_copies}: {time.perf_counter() - began:.0f} s", flush=True)
    connection.execute(f"UPDATE actions SET n_annotations = n_annotations * {n_copies}")
    connection.execute("DETACH seed")
    connection.execute("CHECKPOINT")
    connection.close()


def ensure_grown(n_copies: int = 50, n_trajectories: int = 2000, seed: int = 0) -> Path:
    """The pool of these sizes, made when it isn't there."""
    path = CACHE / f"grown-{n_copies}x{n_trajectories}x{N_STEPS}-{seed}.duckdb"
    if not path.exists():
        partial = path.with_suffix(".partial")
        for old in CACHE.glob(partial.name + "*"):
            old.unlink()
        grow(ensure_rich(n_trajectories, N_STEPS, seed, new_tokens=NEW_TOKENS), partial, n_copies, n_trajectories)
        partial.rename(path)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=50)
    parser.add_argument("--trajectories", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(ensure_grown(given.copies, given.trajectories, given.seed))
