"""Reads a dataset of steps (``core.export.dataset``): its plan without tokens, each part as an exporter's source."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from core.batch.plan import Plan
from core.batch.recipe import parse_recipe
from core.batch.source import PlanSource
from core.errors import InvalidInput, NotFound
from core.export.dataset import CREDIT, HEAD, LAYOUT_VERSION, STEPS, TRAJECTORIES
from core.export.steps_parquet import FROM_STEP, JSON_COLUMNS
from core.tree.sequences import Sequences, ragged_index
from core.types import View

TOKENS = ("prompt_ids", "response_ids", "response_logprobs", "response_mask")


class _Facts:
    """The fields of ``CREDIT`` of a plan's steps, from its columns."""

    def __init__(self, steps: pa.Table) -> None:
        self._uids = steps["step_uid"].combine_chunks()
        self._fields = {name: steps[f"credit_{name}"].combine_chunks() for name in CREDIT}

    def places(self, step_uids: Any) -> Any:
        """Rows of these steps: int [k]."""
        values = step_uids if isinstance(step_uids, pa.Array | pa.ChunkedArray) else pa.array(step_uids, pa.string())
        places = pc.index_in(values, value_set=self._uids)
        if places.null_count:
            raise NotFound("a step is not in this part of the dataset", field="step_uid")
        return places.to_numpy()

    def credit_fields(self, step_uids: Any, fields: Sequence[str]) -> pa.Table:
        """As ``ExportSource.credit_fields``, for the fields that datasets have."""
        for name in fields:
            if name not in self._fields:
                raise InvalidInput(
                    f"the dataset has no field {name!r}", field="format", hint="export in the studio; it reads the pool"
                )
        places = pa.array(self.places(step_uids))
        return pa.table({name: self._fields[name].take(places) for name in fields})


class PartSource(_Facts):
    """Tokens and texts of one part, as exporters read them from the pool.

    Args:
        path: the part's file.
        steps: the part's rows of ``plan/steps.parquet``.
    """

    def __init__(self, path: Path, steps: pa.Table) -> None:
        super().__init__(steps)
        self._file = pq.ParquetFile(path, memory_map=True)
        self._steps = steps

    @property
    def training(self) -> PartSource:
        """Itself: the part takes the place of a pool."""
        return self

    @cached_property
    def _tokens(self) -> pa.Table:
        return self._file.read(columns=list(TOKENS)).combine_chunks()

    @cached_property
    def _texts(self) -> pa.Table:
        return self._file.read(columns=["step_uid", "response_mask", *FROM_STEP, *JSON_COLUMNS])

    @cached_property
    def _rows_by_trajectory(self) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for row, uid in enumerate(self._steps["trajectory_uid"].to_pylist()):
            rows.setdefault(uid, []).append(row)
        return rows

    def sequences(self, step_uids: Sequence[str]) -> Sequences:
        """Full sequences of these steps, in the order given.

        ``parent`` is the step before, where it is of the same trajectory; ``n_shared`` the tokens that both begin with.
        """
        places = self.places(step_uids)
        tokens = self._tokens.take(pa.array(places))
        prompts, responses = (tokens[name].combine_chunks() for name in ("prompt_ids", "response_ids"))
        n_prompt, n_response = (
            pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64) for column in (prompts, responses)
        )
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(n_prompt + n_response)])
        at = ragged_index(offsets[:-1] + n_prompt, n_response)
        ids = np.empty(int(offsets[-1]), dtype=np.int32)
        ids[ragged_index(offsets[:-1], n_prompt)] = prompts.flatten().to_numpy()
        ids[at] = responses.flatten().to_numpy()
        scores = tokens["response_logprobs"].combine_chunks()
        n_scores = pc.fill_null(pc.list_value_length(scores), 0).to_numpy().astype(np.int64)
        logprobs = np.full(len(ids), np.nan, dtype=np.float32)
        logprobs[ragged_index(offsets[:-1] + n_prompt, n_scores)] = scores.flatten().to_numpy(zero_copy_only=False)
        counted = tokens["response_mask"].combine_chunks().flatten().to_numpy()
        masked = None
        if not counted.all():
            masked = np.zeros(len(ids), dtype=np.bool_)
            masked[at] = counted == 0
        owners = self._steps["trajectory_uid"].take(pa.array(places)).combine_chunks()
        parent, n_shared = _shared(ids, offsets, owners)
        return Sequences(
            ids=ids,
            offsets=offsets,
            n_prompt=n_prompt,
            logprobs=logprobs,
            step_uids=list(step_uids),
            parent=parent,
            n_shared=n_shared,
            masked=masked,
        )

    def trajectory(self, trajectory_uid: str, *, tokens: bool = True) -> dict[str, Any]:
        """The trajectory with its planned steps: messages, tools, and what else text formats read of a step."""
        if trajectory_uid not in self._rows_by_trajectory:
            raise NotFound(f"no trajectory {trajectory_uid!r} in this part of the dataset", field="trajectory_uid")
        rows = pa.array(self._rows_by_trajectory[trajectory_uid])
        steps = self._texts.take(rows).to_pylist()
        lengths = {name: self._steps[name].take(rows).to_pylist() for name in ("n_prompt_tokens", "n_response_tokens")}
        for place, step in enumerate(steps):
            step |= {name: None if step[name] is None else orjson.loads(step[name]) for name in JSON_COLUMNS}
            step |= {name: values[place] for name, values in lengths.items()}
            # All ones: no token is left out, which the pool gives as None.
            step["response_mask"] = step["response_mask"] if 0 in (step["response_mask"] or ()) else None
        return {"trajectory_uid": trajectory_uid, "steps": steps}

    def trajectories(self, trajectory_uids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Several of them, in the order given."""
        return map(self.trajectory, trajectory_uids)


def _shared(ids: Any, offsets: Any, owners: pa.Array) -> tuple[Any, Any]:
    """``Sequences.parent`` and ``Sequences.n_shared``: each step with the one before it in its trajectory."""
    n = len(offsets) - 1
    parent, n_shared = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)
    if n < 2:
        return parent, n_shared
    same = pc.equal(owners.slice(1), owners.slice(0, n - 1)).to_numpy(zero_copy_only=False)
    for i in (np.flatnonzero(same) + 1).tolist():
        before, own = ids[offsets[i - 1] : offsets[i]], ids[offsets[i] : offsets[i + 1]]
        length = min(len(before), len(own))
        differs = before[:length] != own[:length]
        shared = int(differs.argmax()) if differs.any() else length
        if shared:
            parent[i], n_shared[i] = i - 1, shared
    return parent, n_shared


@dataclass(frozen=True, slots=True)
class StepDataset:
    """A dataset of steps.

    Attributes:
        folder: where it is.
        head: the content of ``dataset.json``.
    """

    folder: Path
    head: dict[str, Any]

    @classmethod
    def open(cls, folder: Path) -> StepDataset:
        """The dataset in a folder. InvalidInput: there is none, or a newer studio wrote it."""
        try:
            head = orjson.loads((folder / HEAD).read_bytes())
            layout = head["layout_version"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(
                f"{folder} is no dataset of steps",
                field="dataset",
                hint="name a folder that claw-studio export steps_dataset wrote; all nodes must see it at this path",
            ) from error
        if layout != LAYOUT_VERSION:
            raise InvalidInput(
                f"{folder} has the layout {layout}, and this studio reads {LAYOUT_VERSION}",
                field="dataset",
                hint="export it again, or take the studio's version that wrote it",
            )
        return cls(folder, head)

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return len(self.head["parts"])

    def files(self) -> list[Path]:
        """The files with the steps, in plan order."""
        return [self.folder / part["file"] for part in self.head["parts"]]

    def plan(self) -> Plan:
        """The plan that was written, without tokens: differences of a format are known from it."""
        return self._plan(pq.read_table(self.folder / STEPS), pq.read_table(self.folder / TRAJECTORIES))

    def part(self, number: int) -> tuple[Plan, PartSource]:
        """A part's plan, and the source of its tokens and texts.

        Raises:
            InvalidInput: the part's file is not the one that was written.
        """
        path = self.folder / self.head["parts"][number]["file"]
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != self.head["parts"][number]["sha256"]:
                raise InvalidInput(
                    f"{path} was changed or damaged after it was written", field="dataset", hint="export it again"
                )
        steps, trajectories = (
            pq.ParquetFile(self.folder / name).read_row_group(number) for name in (STEPS, TRAJECTORIES)
        )
        source = PartSource(path, steps)
        first = sum(part["n_trajectories"] for part in self.head["parts"][:number])
        return self._plan(steps, trajectories, source, first), source

    def _plan(
        self, steps: pa.Table, trajectories: pa.Table, source: PartSource | None = None, first_trajectory: int = 0
    ) -> Plan:
        manifest = self.head["manifest"]
        if source is None:
            # Parts number their trajectories and steps from 0.
            starts = np.cumsum(trajectories["n_steps"].to_numpy()) - trajectories["n_steps"].to_numpy()
            owner = np.repeat(np.arange(len(trajectories), dtype=np.int32), trajectories["n_steps"].to_numpy())
            steps = steps.set_column(steps.column_names.index("trajectory"), "trajectory", pa.array(owner))
            trajectories = trajectories.set_column(
                trajectories.column_names.index("first_step"), "first_step", pa.array(starts)
            )
        return Plan(
            view=View(manifest["view"]["filters"], manifest["view"]["where"]),
            recipe=parse_recipe(manifest["recipe"]),
            hash=manifest["plan"]["hash"],
            policy_version=manifest["policy_version"],
            steps=steps,
            trajectories=trajectories,
            excluded=[],
            remaining=[
                (one["after"], one["n_groups"], one["n_trajectories"], one["n_steps"]) for one in manifest["funnel"]
            ],
            reader=cast(PlanSource, _Facts(steps) if source is None else source),
            level=self.head["level"],
            dataset_version=manifest["dataset_version"],
            first_trajectory=first_trajectory,
        )
