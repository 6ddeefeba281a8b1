"""A data folder that is written as the service writes it, and its pool's tables read past the code under test."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from core.batch.datasets import freeze_version
from core.batch.leases import Fetch, Leases
from core.batch.recipe import parse_recipe
from core.config import Settings
from core.ingest import Ingest
from core.journal import Journal
from core.pool import Pool
from core.rebuild import restore_missing_opinions
from core.records import complete_record, feedback_record, policy_record, session_record, steps_record
from core.types import Annotation, View
from tests.batch.keeping_all import SFT_ALL

T0 = 1_700_000_000.0
DAY = 86400.0
GRPO = {"algorithm": "grpo", "n_rollouts": 2, "batch_size": 1}


class Folder:
    """Journal, pool, opinions log and ingest of one data folder, driven by hand."""

    def __init__(self, data: Path) -> None:
        self.settings = Settings(data_dir=data, pool_memory="300MB", pool_threads=1)
        self.now = T0
        self.number = 0
        self.open()

    def open(self) -> None:
        """As ``Service`` opens them."""
        settings = self.settings
        self.pool = Pool.open(
            settings.pool_path,
            memory=settings.pool_memory,
            threads=1,
            clock=lambda: self.now,
            opinions=settings.opinions_dir,
            trash=settings.trash_dir,
        )
        self.journal = Journal(settings.journal_dir, segment_bytes=1 << 16)
        self.ingest = Ingest(settings.journal_dir, self.pool, wait=self.journal.wait, clock=lambda: self.now)
        restore_missing_opinions(self.pool, self.ingest, settings.trash_dir)
        self.leases = Leases(self.pool, lambda: self.now, self.uid, lambda _: 7)

    def uid(self) -> str:
        self.number += 1
        return f"b{self.number}"

    def close(self) -> None:
        self.journal.close()
        self.pool.close()

    def send(self, uid: str, n: int = 2, **fields: Any) -> None:
        """Steps of one trajectory, a record each."""
        prompt: list[int] = [1, 2]
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"task of {uid[0]}"}]
        for i in range(n):
            step = {
                "step_uid": f"{uid}.{i}", "trajectory_uid": uid, "prompt_uid": uid[0], "step_index": i,
                "prompt_ids": prompt, "response_ids": [10 + i, 20], "response_logprobs": [-0.5, None],
                "messages": messages, "response_message": {"role": "assistant", "content": f"answer {i} é"},
                "reward": None, "finish_reason": "stop", "created_at": self.now + i, "channel": "train",
                "is_last": i == n - 1, "source": "whitebox", "metadata": {"i": i},
            }  # fmt: skip
            self.journal.append(steps_record(at=self.now, steps=[{**step, **fields}])).result()
            prompt = [*prompt, 10 + i, 20, 5]
            messages = [*messages, step["response_message"], {"role": "user", "content": f"go on {i}"}]

    def feedback(
        self, uid: str, value: Any, kind: str = "thumbs", given_at: float | None = None, **target: str
    ) -> None:
        item = {
            "feedback_uid": uid, "kind": kind, "value": value, "author": "user", "source": "service",
            "reward": {"up": 1.0, "down": 0.0}.get(value), "given_at": None, **target,
        }  # fmt: skip
        self.journal.append(feedback_record(at=self.now, feedback=[item])).result()

    def catch_up(self) -> None:
        assert self.ingest.catch_up(60)

    def label(self, kind: str, value: Any, source: str = "human", **target: str) -> str:
        self.now += 1
        return self.pool.labels.annotate(
            [Annotation(kind, value, "ann", source, self.now, **target)], label=f"{kind} by hand"
        )


EDIT = {
    "edit_uid": f"edit-{7:032x}", "message": {"role": "assistant", "content": "edited é"}, "response_ids": [31, 32],
    "text": "edited é", "tokenizer_hash": "tok", "template_hash": "template",
}  # fmt: skip


def say_everything(folder: Folder) -> None:
    """Every kind of opinion once or more, facts and feedback in between."""
    pool = folder.pool
    for uid in ("a1", "a2", "b1", "b2", "c1", "c2"):
        folder.send(uid)
        folder.journal.append(
            complete_record(at=folder.now, trajectory_uid=uid, reward=float(uid[1] == "1"), outcome=None)
        ).result()
    folder.journal.append(policy_record(at=folder.now, version=3, event="registered")).result()
    folder.journal.append(
        session_record(
            at=folder.now, key_sha256="ab" * 32, trajectory_uid="a1", prompt_uid="a", channel="train", agent=None,
            metadata={},
        )
    ).result()  # fmt: skip
    folder.catch_up()
    folder.label("reward", 0.25, trajectory_uid="a1")
    folder.feedback("f1", "up", trajectory_uid="a1")  # after the label, so it counts
    folder.feedback("f2", "down", step_uid="late.0")  # waits for its step
    folder.catch_up()
    folder.label("reward", 0.75, trajectory_uid="a2", source="judge")
    undone = folder.label("quality", "bad", step_uid="a1.1")
    pool.labels.undo(undone)
    again = folder.label("tag", "fine", trajectory_uid="b1")
    pool.labels.undo(again)
    pool.labels.redo(again)
    folder.label("note", "look: \x00é\n", step_uid="b1.0")
    folder.label("correct", True, trajectory_uid="b2")
    folder.label("edit", EDIT, step_uid="b2.0")
    pool.labels.annotate_view(View({"prompt_uid": "c"}), "step", "trainable", False, author="bob", source="human")
    folder.feedback("f1", "down", trajectory_uid="a1")
    folder.send("late")
    folder.catch_up()
    pool.views.save("mine", View({"prompt_uid": "a"}, "reward > 0"))
    pool.views.save("gone", View({"prompt_uid": "b"}))
    pool.views.save("mine", View({"prompt_uid": "b"}, "reward > 0.5"))
    pool.views.delete("gone")
    pool.recipes.save("r", SFT_ALL)
    pool.recipes.save("r", {"algorithm": "grpo", "n_rollouts": 2})
    pool.recipes.activate("train", "r", 1)
    pool.rewards.save("judges", {"rule": "precedence", "sources": ["judge", "complete"]})
    pool.rewards.adopt("train", "judges")
    pool.values.store("critic", pa.table({"step_uid": ["a1.0", "b1.1"], "value": [0.5, -1.0]}))
    first = freeze_version(pool, "v1", View(), parse_recipe(SFT_ALL), author="ann")
    folder.label("tag", "-fine", trajectory_uid="b1")
    valued = parse_recipe({"algorithm": "step_gae", "value_model": "critic"})
    freeze_version(pool, "valued", View(), valued, author="ann")
    freeze_version(
        pool,
        "v2",
        View({"prompt_uid": "b"}),
        parse_recipe(SFT_ALL),
        author="ann",
        parent=first["name"],
    )
    for state in ("acked", "released", "leased"):
        leased = folder.leases.fetch(Fetch("trainer", recipe=GRPO)).batch
        assert leased is not None
        if state != "leased":
            pool.batches.finish(leased["batch_uid"], state, update=1, metrics={"loss": 0.5})
        else:
            pool.batches.renew(leased["batch_uid"], folder.now + 5000)


_HIDDEN = {"ingested_at", "tags"}
_NOT_COMPARED = {"schema_migrations", "opinions_position", "held_feedback", "ingest_errors", "conflicts"}
_IDS = {
    "trajectory_id": "(SELECT trajectory_uid FROM trajectories o WHERE o.trajectory_id = x.trajectory_id)",
    "step_id": "(SELECT step_uid FROM steps o WHERE o.step_id = x.step_id)",
    "parent_step_id": "(SELECT step_uid FROM steps o WHERE o.step_id = x.parent_step_id)",
    "message_id": "(SELECT content_hash FROM messages o WHERE o.message_id = x.message_id)",
    "response_message_id": "(SELECT content_hash FROM messages o WHERE o.message_id = x.response_message_id)",
    "tools_id": "(SELECT content_hash FROM messages o WHERE o.message_id = x.tools_id)",
    "new_message_ids": "(SELECT list((SELECT content_hash FROM messages o WHERE o.message_id = u.one)) FROM"
    " (SELECT unnest(x.new_message_ids) AS one) u)",
}


def reopened(folder: Folder) -> dict[str, list[str]]:
    """Its tables as they stand on disk; it is open again afterwards."""
    folder.close()
    content = tables(folder.settings.pool_path)
    folder.open()
    return content


def tables(path: Path) -> dict[str, list[str]]:
    """Every table's rows as sorted text, numbers of the file's own in the words of their uids: a brute force."""
    content: dict[str, list[str]] = {}
    with closing(duckdb.connect(str(path), read_only=True)) as db:
        names = db.execute("SELECT table_name FROM duckdb_tables() WHERE NOT temporary ORDER BY 1").fetchall()
        for (name,) in names:
            if name in _NOT_COMPARED:
                continue
            columns = [row[0] for row in db.execute(f"DESCRIBE {name}").fetchall() if row[0] not in _HIDDEN]
            if name == "trajectory_events":
                columns.remove("event_id")
            chosen = ", ".join(f"{_IDS.get(one, f'x.{one}')} AS {one}" for one in columns)
            content[name] = sorted(map(repr, db.execute(f"SELECT {chosen} FROM {name} x").fetchall()))
    return content


def different(one: dict[str, list[str]], other: dict[str, list[str]]) -> dict[str, Any]:
    """Tables whose rows differ, with the rows that only one of them has."""
    return {
        name: (sorted(set(one.get(name, [])) - set(rows))[:3], sorted(set(rows) - set(one.get(name, [])))[:3])
        for name, rows in other.items()
        if one.get(name) != rows
    }
