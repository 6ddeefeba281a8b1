"""``Pool``: opens the database file and holds the parts. Each part is a file and receives the parts it needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from core.pool.agreement import Agreement
from core.pool.batches import Batches
from core.pool.cache.cache import Cache
from core.pool.consumption import Consumption
from core.pool.edits import Edits
from core.pool.feedback import Feedback
from core.pool.groups import PromptGroups
from core.pool.journal import JournalRecords
from core.pool.labels import Labels
from core.pool.learning import Learning
from core.pool.query.textsearch import TextSearch
from core.pool.query.viewreader import ViewReader
from core.pool.recipes import Recipes
from core.pool.redaction.screening import Screening
from core.pool.review import Review
from core.pool.rewards import RewardPolicies
from core.pool.runs import Runs
from core.pool.savedviews import SavedViews
from core.pool.sql.console import Console
from core.pool.state.backfill import fill_findings, unobserved
from core.pool.state.derive import refresh
from core.pool.stats import Stats
from core.pool.steps import Steps
from core.pool.store.database import Database
from core.pool.store.file import PoolFile
from core.pool.store.writer import Writer
from core.pool.training import TrainingData
from core.pool.trajectories import Trajectories
from core.pool.upkeep.integrity import Integrity
from core.pool.upkeep.recovery import Recovery
from core.pool.upkeep.retention import RetentionRuns
from core.pool.values import Values
from core.pool.versions import Versions


class Pool:
    """Steps, opinions and their effective state in one DuckDB file.

    Writes take one lock and are one transaction each; reads use their own cursor and may run in any thread.

    Attributes:
        steps, trajectories, groups, runs: captured data, one by one and by pages.
        stats: counts, facets and histograms.
        training: what plans and exporters read.
        labels, review, agreement, feedback: opinions of people and services.
        edits: answers that people edited.
        rewards: reward policies, and which one a channel has adopted.
        values: critics' values of steps.
        views, recipes: kept under a name.
        batches, consumption: what trainers hold, and what became of it.
        learning: reward by policy version and channel.
        versions: frozen datasets.
        screening: searches texts in many trajectories at once.
        sql: people's queries.
        journal: read positions, damages, sessions and policy events.
        file, retention, recovery, integrity: the file, what is deleted, the opinions log, and checks of all of it.
        cache: the caches in memory.
    """

    def __init__(
        self, database: Database, *, trash: Path | None = None, elapsed: Callable[[], float] | None = None
    ) -> None:
        self._db = database
        self._writer = writer = Writer(database)
        texts = TextSearch(None if database.path == ":memory:" else Path(database.path).parent)
        reader = ViewReader(database, texts)
        self.cache = cache = Cache(database, writer, reader, texts)
        self.file = PoolFile(database)
        self.recovery = Recovery(database, writer, self.file)
        self.retention = RetentionRuns(database, writer, self.file, trash)
        self.integrity = Integrity(database, writer)
        self.journal = JournalRecords(database)
        self.steps = Steps(database, writer, self.recovery, reader, cache)
        self.trajectories = Trajectories(database, reader, cache)
        self.groups = PromptGroups(database, reader, cache)
        self.runs = Runs(reader, cache)
        self.stats = Stats(reader, cache)
        self.labels = Labels(database, writer, reader)
        self.review = Review(database, reader)
        self.agreement = Agreement(database, reader)
        self.edits = Edits(database)
        self.feedback = Feedback(database)
        self.rewards = RewardPolicies(database)
        self.values = Values(database)
        self.views = SavedViews(database, reader)
        self.recipes = Recipes(database)
        self.batches = Batches(database, elapsed)
        self.consumption = Consumption(database)
        self.learning = Learning(database)
        self.versions = Versions(database, reader, self.rewards)
        self.screening = Screening(database)
        self.sql = Console(database)
        self.training = TrainingData(
            database,
            reader,
            steps=self.steps,
            trajectories=self.trajectories,
            rewards=self.rewards,
            values=self.values,
            edits=self.edits,
        )
        with database.read() as cursor:
            behind = unobserved(cursor)
        if behind:
            with database.write() as cursor:
                fill_findings(cursor)
                refresh(cursor, None)

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        memory: str = "2GB",
        threads: int = 2,
        clock: Callable[[], float] = time.time,
        opinions: Path | None = None,
        trash: Path | None = None,
        elapsed: Callable[[], float] | None = None,
    ) -> Pool:
        """Open or create the file and bring its schema up to date.

        Args:
            opinions: folder of the opinions log; None keeps none. Where ``recovery`` is ``behind`` it afterwards, the
                journal has to be read to its end and ``recover`` called before anything else is written.
            trash: folder that deleted data is moved to; None: deletion is final.
            elapsed: seconds that no setting of the clock changes, for leases; by default ``clock``.

        Raises:
            PoolDamaged: the file can't be read.
            PoolError: it can't be opened, migrated or written, or the log can't.
        """
        pool = cls(Database(path, memory=memory, threads=threads, clock=clock), trash=trash, elapsed=elapsed)
        if opinions is not None:
            try:
                pool.recovery.keep_log(opinions)
            except BaseException:
                pool.close()
                raise
        return pool

    def close(self) -> None:
        """End what queries run, wait for a running write, then close the file."""
        self.sql.stop()
        self._db.close()

    @property
    def n_writes(self) -> int:
        """The number of transactions committed by this process. While it is unchanged, so are all query results."""
        return self._db.n_writes
