"""Request models of the trainers' routes: fetches, acknowledgements, metrics, recipes, values."""

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

    consumer: Name = Field(description="Name of the consumer; its acknowledgements and retries must give the same name")
    request_id: Uid | None = Field(None, description="Id of this request: a retry with it gets the same batch")
    view: ViewIn | None = None
    view_name: Name | None = None
    dataset: Name | None = Field(None, description="A frozen dataset version, in place of a view")
    recipe: dict[str, Any] | None = None
    recipe_name: Name | None = None
    recipe_version: Annotated[int, Field(ge=1, le=MAX_TOKEN_ID, strict=True)] | None = None
    channel: Name | None = Field(
        None, description="Channel of the steps; its active recipe is used if no recipe is given"
    )
    wait_s: Annotated[float, Field(ge=0, le=MAX_WAIT_S, strict=True)] = Field(
        0.0, description="How long to wait until enough groups are ready, seconds"
    )
    lease_s: LeaseSeconds = DEFAULT_LEASE_S
    shared: Flag = Field(False, description="Ignore other consumers' leases and consumption")
    partial: Flag = Field(False, description="Accept fewer groups than the batch size")
    format: Literal["json", "arrow", "file"] = Field(
        "json", description="json: steps in the response; arrow: the response is an Arrow stream; file: only its URL"
    )

    @model_validator(mode="after")
    def _one_of_each(self) -> FetchIn:
        if self.view is not None and self.view_name is not None:
            raise ValueError("view and view_name exclude each other")
        if self.dataset is not None and (self.view is not None or self.view_name is not None):
            raise ValueError("dataset excludes view and view_name: a version is used as it was frozen")
        if self.recipe is not None and self.recipe_name is not None:
            raise ValueError("recipe excludes recipe_name")
        own = None if self.recipe is None else self.recipe.get("channel")
        if own is not None and self.channel is not None and own != self.channel:
            raise ValueError(f"channel is {self.channel!r}, but the recipe's is {own!r}: give one of them")
        if self.recipe_version is not None and self.recipe_name is None:
            raise ValueError("recipe_version needs recipe_name")
        return self

    def fetch(self) -> Fetch:
        """The request for ``core.batch.leases``."""
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
    """Metrics of one step of a batch."""

    step_uid: Uid
    metrics: Metrics


class MetricsIn(WireModel):
    """``POST batches/{uid}/metrics``: loss, kl, entropy, ratio, clip_fraction, ... by name."""

    update: Version | None = None
    metrics: Metrics = Field(default_factory=dict)
    steps: Annotated[list[StepMetrics], Field(max_length=1_000_000)] = Field(default_factory=list)


class AckIn(MetricsIn):
    """``POST batches/{uid}/ack``: the batch was used in an update."""

    consumer: Name | None = None


class ReleaseIn(WireModel):
    """``POST batches/{uid}/release``: the batch can be fetched again."""

    consumer: Name | None = None
    reason: str | None = None


class RenewIn(WireModel):
    """``POST batches/{uid}/renew``: the lease expires ``lease_s`` after this call."""

    consumer: Name | None = None
    lease_s: LeaseSeconds = DEFAULT_LEASE_S


class RecipeIn(WireModel):
    """``PUT recipes/{name}``: adds a version, unless it equals the newest."""

    recipe: dict[str, Any]
    author: Name = "api"


class ActiveRecipeIn(WireModel):
    """``PUT channels/{channel}/recipe``: sets the recipe of the channel's fetches; without a name, the defaults."""

    name: Name | None = None
    version: Annotated[int, Field(ge=1, le=MAX_TOKEN_ID, strict=True)] | None = None
    author: Name = "api"


class SyncIn(WireModel):
    """``POST policy/sync``: the engines load new weights."""

    path: Folder = Field(description="The weights as a transformers folder, at a path that the engines can read")
    version: Version = Field(description="Policy version of these weights")
    engines: Annotated[list[Name], Field(min_length=1, max_length=1000)] | None = Field(
        None, description="Engines by name; null: the default engine, its replicas, and engines with a weights hook"
    )
    timeout_s: Annotated[float, Field(gt=0, le=MAX_WAIT_S, strict=True)] | None = Field(
        None, description="Longest time for all of it, seconds, at most policy_sync_timeout_s"
    )
    drain_s: Annotated[float, Field(ge=0, le=MAX_WAIT_S, strict=True)] = Field(
        20.0,
        description="How long calls in flight may take to end before the weights are loaded, seconds. Calls that take "
        "longer are sampled by both versions and recorded with both",
    )
    metadata: dict[str, Any] = Field(default_factory=dict)


class ValueIn(WireModel):
    """A critic's value of the state before one step."""

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
