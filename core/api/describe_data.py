"""What the calls of ``core.api.data`` take and give: a part of ``describe``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from core.api import data_wire
from core.api.describe import (
    ANY,
    BOOL,
    INT,
    LIMIT,
    NUM,
    NUM_OR_NULL,
    OBJ,
    STR,
    TEXT_OR_NULL,
    TIME,
    TOTALS,
    Operation,
    array,
    obj,
    or_null,
    whole,
)
from core.pool.agreement import KINDS, LEVELS

VERSION: Final = obj(
    name=STR, version_uid=STR, content_hash=STR, parent=TEXT_OR_NULL, channel=STR, view=OBJ, recipe=OBJ,
    redaction=or_null(OBJ), provenance=OBJ, n_groups=INT, n_trajectories=INT, n_steps=INT, n_tokens=INT, author=STR,
    note=TEXT_OR_NULL, created_at=TIME,
)  # fmt: skip
KIND: Final = {"enum": list(KINDS)}
LEVEL: Final = {"enum": list(LEVELS)}

DATA: Final[Mapping[tuple[str, str], Operation]] = {
    ("GET", "/sql"): Operation(
        "Tables and columns that SQL may read",
        obj(tables=array(obj(table=STR, doc=STR, columns=array(obj(name=STR, type=STR, doc=STR))))),
    ),
    ("POST", "/sql"): Operation(
        "Answer one SELECT; reads only",
        obj(columns=array(obj(name=STR, type=STR)), rows=array(array(ANY)), n_rows=INT, truncated=BOOL, elapsed_s=NUM),
        data_wire.SqlIn,
        statuses=(409,),
        example={"sql": "SELECT channel, count(*) AS n FROM step_state GROUP BY channel"},
        note="Files, the network, settings, writes and what makes much out of little are refused; rows, bytes, memory "
        "and seconds are limited.",
    ),
    ("GET", "/datasets"): Operation(
        "Dataset versions, newest first, and the built-in redaction rules", obj(datasets=array(VERSION), rules=OBJ)
    ),
    ("POST", "/datasets"): Operation(
        "Freeze a view under a name",
        VERSION,
        data_wire.FreezeIn,
        statuses=(404, 409),
        example={"name": "math-1", "recipe": {"algorithm": "sft"}, "redaction": {"rules": ["secrets", "email"]}},
    ),
    ("GET", "/datasets/{name}"): Operation("One dataset version", VERSION, statuses=(404,)),
    ("GET", "/datasets/{name}/verify"): Operation(
        "Whether a version still has its hash", obj(name=STR, intact=BOOL), statuses=(404,)
    ),
    ("GET", "/datasets/{name}/diff"): Operation(
        "What another version has otherwise",
        obj(a=STR, b=STR, counts=OBJ, changes=array(OBJ), truncated=BOOL),
        query={"to": STR, "limit": whole(1, 100_000)},
        statuses=(404,),
    ),
    ("POST", "/datasets/{name}/plan"): Operation(
        "The plan of a version, by its recipe unless told",
        obj(totals=TOTALS, groups=array(OBJ), excluded=array(obj(reason=STR)), dataset_version=OBJ),
        data_wire.VersionPlanIn,
        needs_body=False,
        statuses=(404,),
    ),
    ("POST", "/datasets/{name}/export"): Operation(
        "Write a version's files on the service's machine: the same bytes each time",
        obj(path=STR, manifest_path=STR, n_rows=INT, n_tokens=INT, sha256=STR),
        data_wire.VersionExportIn,
        statuses=(404, 409),
    ),
    ("GET", "/rewards"): Operation(
        "Reward policies, which are adopted, and who has spoken in a channel",
        obj(policies=array(OBJ), adopted=OBJ, sources=array(OBJ), rules=OBJ),
        query={"channel": STR},
    ),
    ("PUT", "/rewards/{name}"): Operation(
        "A new version of a reward policy", obj(name=STR, version=INT), data_wire.RewardPolicyIn
    ),
    ("POST", "/rewards/preview"): Operation(
        "What a reward policy would change",
        obj(policy=OBJ, channel=STR, counts=OBJ, histogram=array(OBJ), changes=array(OBJ)),
        data_wire.RewardPreviewIn,
        statuses=(404,),
        example={"policy": {"rule": "precedence", "sources": ["human", "verifier"]}},
    ),
    ("PUT", "/channels/{channel}/rewards"): Operation(
        "Adopt a reward policy for a channel", obj(channel=STR, adopted=ANY), data_wire.AdoptIn, False, statuses=(404,)
    ),
    ("GET", "/channels/{channel}/rewards"): Operation("The reward policy of a channel", obj(channel=STR, adopted=ANY)),
    ("GET", "/agreement"): Operation(
        "How far two reviewers agree",
        obj(
            reviewers=array(obj(author=STR, n=INT)),
            agreement=or_null(obj(n=INT, n_agree=INT, percent=NUM_OR_NULL, kappa=NUM_OR_NULL, labels=array(STR))),
        ),
        query={"a": STR, "b": STR, "kind": KIND, "level": LEVEL},
    ),
    ("GET", "/disagreements"): Operation(
        "What reviewers label differently, newest first",
        obj(disagreements=array(obj(step_uid=TEXT_OR_NULL, trajectory_uid=STR, opinions=array(OBJ)))),
        query={"kind": KIND, "level": LEVEL, "limit": LIMIT, "offset": whole(0, 10**9)},
    ),
    ("POST", "/backup"): Operation(
        "Copy pool and journal while they are in use",
        obj(out=STR, created_at=STR, n_steps=INT, positions=OBJ, files=OBJ),
        data_wire.BackupIn,
        statuses=(409,),
    ),
    ("POST", "/retention"): Operation(
        "Preview, or with apply delete, what is old, consumed or too much",
        obj(
            applied=BOOL,
            n_trajectories=INT,
            n_steps=INT,
            n_tokens=INT,
            n_bytes=INT,
            oldest=TIME,
            newest=TIME,
            n_kept_in_version=INT,
            n_kept_leased=INT,
            n_kept_recent=INT,
            segments=array(STR),
            confirm=TEXT_OR_NULL,
            expires_at=TIME,
            run_uid=TEXT_OR_NULL,
        ),
        data_wire.RetentionIn,
        example={"older_than_days": 90},
        statuses=(409,),
        note="Whole trajectories, of which everything given holds. What is in a dataset version, leased, or newer than "
        "an hour stays.",
    ),
    ("GET", "/retention"): Operation("What was deleted, newest first", obj(runs=array(OBJ))),
    ("GET", "/trash"): Operation(
        "What was deleted and can still be restored, newest first, and the word that empties it",
        obj(runs=array(OBJ), confirm=STR, expires_at=TIME),
    ),
    ("POST", "/trash/empty"): Operation(
        "Delete for good what GET trash showed", obj(emptied=array(STR)), data_wire.EmptyIn, statuses=(409,)
    ),
    ("POST", "/trash/{run_uid}/restore"): Operation(
        "Put back what a retention run deleted",
        obj(run_uid=STR, n_trajectories=INT, segments=array(STR)),
        data_wire.RestoreIn,
        statuses=(404, 409),
    ),
    ("POST", "/integrity"): Operation(
        "Compare every step with its journal record and its hash",
        obj(
            ok=BOOL,
            n_steps=INT,
            n_against_journal=INT,
            n_without_record=INT,
            n_mismatches=INT,
            mismatches=array(obj(step_uid=STR, what=STR)),
            versions=array(obj(name=STR, intact=BOOL)),
        ),
    ),
}
"""Below ``/api/v1``."""
