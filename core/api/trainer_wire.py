"""The JSON that trainers send: fetches, acknowledgements, metrics, recipes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from core.api.wire import MAX_TOKEN_ID, Flag, Folder, Number, Uid, Version, ViewIn, WireModel
from core.batch.leases import DEFAULT_LEASE_S, Fetch

MAX_WAIT_S = 3600.0
MAX_LEASE_S = 7 * 86400.0

Name = Annotated[str, Field(min_length=1, max_length=256)]
LeaseSeconds = Annotated[float, Field(gt=0, le=MAX_LEASE_S, strict=True)]
Metrics = dict[Name, Number | None]


class FetchIn(WireModel):
    """``POST batches/fetch``."""

    consumer: Name = Field(description="Who fetches; acknowledgements and retries belong to it")
    request_id: Uid | None = Field(None, description="Own name of this request: a retry gets the same batch")
    view: ViewIn | None = None
    view_name: Name | None = None
    dataset: Name | None = Field(None, description="A dataset version, as it was frozen, in place of a view")
    recipe: dict[str, Any] | None = None
    recipe_name: Name | None = None
    recipe_version: Annotated[int, Field(ge=1, le=MAX_TOKEN_ID, strict=True)] | None = None
    channel: Name | None = Field(None, description="Whose active recipe, where none is named")
    wait_s: Annotated[float, Field(ge=0, le=MAX_WAIT_S, strict=True)] = Field(
        0.0, description="Longest wait for readiness, seconds"
    )
    lease_s: LeaseSeconds = DEFAULT_LEASE_S
    shared: Flag = Field(False, description="Other consumers' leases and consumption don't count")
    partial: Flag = Field(False, description="Fewer groups than the batch size will do")
    format: Literal["json", "arrow", "file"] = Field(
        "json", description="json: steps in the answer; arrow: the answer is an Arrow stream; file: only where it is"
    )

    @model_validator(mode="after")
    def _one_of_each(self) -> FetchIn:
        if self.view is not None and self.view_name is not None:
            raise ValueError("view and view_name exclude each other")
        if self.dataset is not None and (self.view is not None or self.view_name is not None):
            raise ValueError("dataset excludes view and view_name: a version is trained on as it was frozen")
        if self.recipe is not None and (self.recipe_name is not None or self.channel is not None):
            raise ValueError("recipe excludes recipe_name and channel: it names its own")
        if self.recipe_version is not None and self.recipe_name is None:
            raise ValueError("recipe_version needs recipe_name")
        return self

    def fetch(self) -> Fetch:
        """As leases take it."""
        return Fetch(
            consumer=self.consumer,
            request_id=self.request_id,
            view=None if self.view is None else self.view.view(),
            view_name=self.view_name,
            dataset=self.dataset,
            recipe=self.recipe,
            recipe_name=self.recipe_name,
            recipe_version=self.recipe_version,
            channel=self.channel,
            lease_s=self.lease_s,
            shared=self.shared,
            partial=self.partial,
        )


class StepMetrics(WireModel):
    """What was measured on one step of a batch."""

    step_uid: Uid
    metrics: Metrics


class MetricsIn(WireModel):
    """``POST batches/{uid}/metrics``: loss, kl, entropy, ratio, clip_fraction, ... by name."""

    update: Version | None = None
    metrics: Metrics = Field(default_factory=dict)
    steps: Annotated[list[StepMetrics], Field(max_length=1_000_000)] = Field(default_factory=list)


class AckIn(MetricsIn):
    """``POST batches/{uid}/ack``: the batch went into an update."""

    consumer: Name | None = None


class ReleaseIn(WireModel):
    """``POST batches/{uid}/release``: the batch goes back."""

    consumer: Name | None = None
    reason: str | None = None


class RenewIn(WireModel):
    """``POST batches/{uid}/renew``: more time, counted from this call."""

    consumer: Name | None = None
    lease_s: LeaseSeconds = DEFAULT_LEASE_S


class RecipeIn(WireModel):
    """``PUT recipes/{name}``: a new version, unless it equals the newest."""

    recipe: dict[str, Any]
    author: Name = "api"


class ActiveRecipeIn(WireModel):
    """``PUT channels/{channel}/recipe``: what fetches of the channel use from then on; no name: the defaults."""

    name: Name | None = None
    version: Annotated[int, Field(ge=1, le=MAX_TOKEN_ID, strict=True)] | None = None
    author: Name = "api"


class ValueIn(WireModel):
    """What a critic thinks of the state before one step."""

    step_uid: Uid
    value: Number


class ValuesIn(WireModel):
    """``POST values``."""

    model: Name
    values: Annotated[list[ValueIn], Field(min_length=1, max_length=1_000_000)]


class ComputeValuesIn(WireModel):
    """``POST values/compute``."""

    model_dir: Folder
    name: Name
    view: ViewIn = Field(default_factory=ViewIn)
    recipe: dict[str, Any] = Field(default_factory=dict)
