"""The temporary tables of opinions have the same columns whether there are opinions or not."""

from __future__ import annotations

from core.pool import Pool
from core.pool.state.workspace import Workspace
from core.types import Annotation, Step


def test_tables_of_opinions_have_the_same_columns_with_and_without_opinions() -> None:
    pool = Pool.open(":memory:")
    pool.steps.append(
        [Step(step_uid=f"s{i}", trajectory_uid=f"t{i}", prompt_uid="p", step_index=0, created_at=1.0) for i in (0, 1)]
    )
    targets: list[dict[str, str]] = [{"step_uid": "s0"}, {"trajectory_uid": "t0"}]
    pool.labels.annotate([Annotation("reward", 1.0, "me", "test", 1e9, **target) for target in targets])  # type: ignore[arg-type]
    columns, n_rows = [], []
    with pool._db.write() as cursor:
        ids = dict(cursor.execute("SELECT trajectory_uid, trajectory_id FROM trajectories").fetchall())
        for uid in ("t0", "t1", "t0"):
            work = Workspace(cursor)
            work.scope_to([ids[uid]])
            work.live_in_scope()
            work.step_opinions()
            work.trajectory_opinions()
            for table in ("step_opinions", "trajectory_opinions"):
                columns.append((table, [row[:2] for row in cursor.execute(f"DESCRIBE {table}").fetchall()]))
                n_rows += [n for (n,) in cursor.execute(f"SELECT count(*) FROM {table}").fetchall()]
    assert n_rows == [1, 1, 0, 0, 1, 1]
    assert columns[:2] == columns[2:4] == columns[4:]
    pool.close()
