"""Request models of the routes for SQL, dataset versions, reward policies, backup, retention and trash."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from core.api.wire import Folder, ViewIn, WireModel
from core.pool.sql.console import MAX_ROWS, MAX_TEXT, MAX_TIMEOUT_S, TIMEOUT_S

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]
Author = Annotated[str, Field(min_length=1)]


class SqlIn(WireModel):
    """``POST sql``: one SELECT."""

    sql: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS, strict=True)] = 1000
    timeout_s: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S, strict=True)] = TIMEOUT_S


class RedactionIn(WireModel):
    """Redaction of a dataset version; see ``core.pool.redaction.rules``."""

    rules: list[str] = Field(default_factory=list, description="secrets, email, or single built-in rules")
    patterns: dict[str, str] = Field(default_factory=dict, description="Custom rules: name -> regular expression")
    action: Literal["mask", "drop"] = "mask"
    unreadable: Literal["drop", "keep"] = "drop"


class FreezeIn(WireModel):
    """``POST datasets``: freeze a view as a named version. ``recipe`` is checked by ``core.batch.recipe``."""

    name: Name
    view: ViewIn = Field(default_factory=ViewIn)
    recipe: dict[str, Any] = Field(default_factory=dict)
    parent: Name | None = None
    redaction: RedactionIn | None = None
    author: Author = "api"
    note: str | None = None


class VersionPlanIn(WireModel):
    """``POST datasets/{name}/plan``: with the frozen recipe or another."""

    recipe: dict[str, Any] | None = None


class VersionExportIn(VersionPlanIn):
    """``POST datasets/{name}/export``: write its files on the service's machine."""

    format: Annotated[str, Field(min_length=1)]
    out: Folder | None = None
    options: dict[str, Any] = Field(default_factory=dict)


class RewardPolicyIn(WireModel):
    """``PUT rewards/{name}``. ``policy`` is checked by ``core.rewards.policy``."""

    policy: dict[str, Any]
    author: Author = "api"


class RewardPreviewIn(WireModel):
    """``POST rewards/preview``: a policy's name, a list of sources, or a policy."""

    policy: str | list[str] | dict[str, Any]
    channel: Annotated[str, Field(min_length=1)] = "train"


class BackupIn(WireModel):
    """``POST backup``: to a new folder on the service's machine."""

    out: Folder


class RetentionIn(WireModel):
    """``POST retention``: conditions for deletion; see ``core.pool.upkeep.retention.Retention``."""

    older_than_days: Annotated[float, Field(ge=0, le=100_000, strict=True)] | None = None
    consumed: Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)] | None = None
    max_bytes: Annotated[int, Field(ge=0, le=2**62, strict=True)] | None = None
    channel: Annotated[str, Field(min_length=1)] | None = None
    apply: Annotated[bool, Field(strict=True)] = False
    journal: Annotated[bool, Field(strict=True)] = Field(
        False, description="With apply: also delete journal segments of which no step is left"
    )
    confirm: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="With apply: the confirm value of the preview with the same conditions"
    )
    author: Author = "api"

    @model_validator(mode="after")
    def _says_something(self) -> RetentionIn:
        if self.older_than_days is None and self.consumed is None and self.max_bytes is None:
            raise ValueError("give older_than_days, consumed or max_bytes")
        return self


class RestoreIn(WireModel):
    """``POST trash/{run_uid}/restore``."""

    author: Author = "api"


class EmptyIn(WireModel):
    """``POST trash/empty``."""

    confirm: Annotated[str, Field(min_length=1, max_length=200)] = Field(description="The confirm value of GET trash")


class AdoptIn(WireModel):
    """``PUT channels/{channel}/rewards``; without a name, the newest reward opinion counts again."""

    name: Name | None = None
    version: Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)] | None = None
    author: Author = "api"
