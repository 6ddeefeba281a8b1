"""Batches for trainers: a plan is leased to a named consumer, and acknowledged, released, or it expires.

Delivery is at least once: a lease that is not acknowledged returns to the pool. Planning and leasing are one step
under one lock, so two consumers never get trajectories of the same prompt group, unless a fetch says ``shared``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from core.batch.plan import Plan, PlanPool, plan
from core.batch.recipe import Recipe, parse_recipe
from core.batch.serialize import deserialize_plan, serialize_plan
from core.pool.batches import Batches
from core.pool.recipes import Recipes
from core.pool.savedviews import SavedViews
from core.types import View

DEFAULT_LEASE_S = 1800.0
DEFAULT_CHANNEL: str = Recipe.model_fields["channel"].default


class LeasePool(PlanPool, Protocol):
    """The parts of a pool that leases read and write."""

    @property
    def batches(self) -> Batches: ...  # noqa: D102
    @property
    def recipes(self) -> Recipes: ...  # noqa: D102
    @property
    def views(self) -> SavedViews: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Fetch:
    """A consumer's request for a batch.

    Attributes:
        consumer: its name; retries and acknowledgements belong to it.
        request_id: its own name for this request: a retry gets the same batch while that is leased or consumed.
        view: which steps; None: all.
        view_name: a saved view instead.
        recipe: JSON of a recipe; None: ``recipe_name``, else the channel's active one, else the defaults.
        dataset: a dataset version, as it was frozen, in place of a view of the pool.
        recipe_name, recipe_version: a saved recipe; without a version its newest.
        channel: of the steps, with ``recipe``; otherwise its active recipe is used if the request names none.
        lease_s: how long it may take to acknowledge, seconds.
        shared: other consumers' leases and consumption don't count.
        partial: fewer groups than the recipe's batch size will do.
    """

    consumer: str
    request_id: str | None = None
    view: View | None = None
    view_name: str | None = None
    dataset: str | None = None
    recipe: Mapping[str, Any] | None = None
    recipe_name: str | None = None
    recipe_version: int | None = None
    channel: str | None = None
    lease_s: float = DEFAULT_LEASE_S
    shared: bool = False
    partial: bool = False


@dataclass(frozen=True, slots=True)
class RecipeChoice:
    """A recipe and its origin; ``name`` is None when it came with the request or is the default."""

    recipe: Recipe
    name: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class LeasedBatch:
    """The result of a fetch.

    Attributes:
        batch: the batch's row; None while the plan isn't ready.
        plan: the leased plan, or the incomplete one.
        chosen: the recipe that was used.
        repeated: the batch was leased earlier, to the same request.
    """

    batch: dict[str, Any] | None
    plan: Plan
    chosen: RecipeChoice
    repeated: bool = False

    @property
    def missing(self) -> str | None:
        """Why there is no batch yet, in words."""
        if self.batch is not None:
            return None
        wanted = self.plan.recipe.batch_size
        if wanted is None:
            return "no prompt group is ready"
        return f"{self.plan.n_groups} of {wanted} prompt groups are ready"


@dataclass(slots=True)
class Leases:
    """Hands out batches.

    Attributes:
        pool: the pool.
        clock: UTC seconds.
        new_uid: names a batch.
        policy_version: the version in force in a channel.
    """

    pool: LeasePool
    clock: Callable[[], float]
    new_uid: Callable[[], str]
    policy_version: Callable[[str], int | None]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fetch(self, wanted: Fetch) -> LeasedBatch:
        """Lease a batch of the groups that are ready now.

        Raises:
            InvalidInput: a view or recipe that doesn't fit; names the field.
            NotFound: no such saved view, dataset version or recipe.
        """
        with self._lock:
            self.pool.batches.expire()
            if wanted.request_id is not None:
                earlier = self.pool.batches.of_request(wanted.consumer, wanted.request_id)
                if earlier is not None and earlier["state"] in ("leased", "acked"):
                    return self._repeated(earlier)
            chosen = self.choose(wanted)
            ready_plan = self.preview(wanted, chosen)
            least = 1 if wanted.partial else ready_plan.recipe.batch_size or 1
            if ready_plan.n_groups < least:
                return LeasedBatch(None, ready_plan, chosen)
            return LeasedBatch(self._lease(wanted, chosen, ready_plan), ready_plan, chosen)

    def preview(self, wanted: Fetch, chosen: RecipeChoice | None = None) -> Plan:
        """The plan that a fetch would lease now; leases nothing."""
        recipe = (chosen or self.choose(wanted)).recipe
        in_use = self.pool.batches.in_use(wanted.consumer, shared=wanted.shared, max_uses=recipe.max_uses)
        return plan(self.pool, self._view(wanted), recipe, in_use=in_use)

    def choose(self, wanted: Fetch) -> RecipeChoice:
        """The recipe of a fetch: its own, the named one, the version's or the channel's active one, the defaults."""
        if wanted.dataset is None:
            return self._recipe(wanted)
        if wanted.recipe is None and wanted.recipe_name is None:
            version_recipe = self.pool.versions.get(wanted.dataset)["recipe"]
            return RecipeChoice(parse_recipe({**version_recipe, "dataset": wanted.dataset}))
        chosen = self._recipe(wanted)
        return replace(chosen, recipe=chosen.recipe.model_copy(update={"dataset": wanted.dataset}))

    def _recipe(self, wanted: Fetch) -> RecipeChoice:
        if wanted.recipe is not None:
            channel = {} if wanted.channel is None else {"channel": wanted.channel}
            return RecipeChoice(parse_recipe({**wanted.recipe, **channel}))
        if wanted.recipe_name is not None:
            version = self.pool.recipes.get(wanted.recipe_name, wanted.recipe_version)
        else:
            active = self.pool.recipes.active(wanted.channel or DEFAULT_CHANNEL)
            if active is None:
                return RecipeChoice(parse_recipe(None if wanted.channel is None else {"channel": wanted.channel}))
            version = active
        return RecipeChoice(parse_recipe(version["recipe"]), version["name"], version["version"])

    def plan_of(self, batch_uid: str) -> Plan:
        """The plan of a batch as it was leased. NotFound when there is no such batch."""
        return deserialize_plan(self.pool.batches.plan(batch_uid), self.pool)

    def _repeated(self, batch: dict[str, Any]) -> LeasedBatch:
        leased_plan = self.plan_of(batch["batch_uid"])
        chosen = RecipeChoice(leased_plan.recipe, batch["recipe_name"], batch["recipe_version"])
        return LeasedBatch(batch, leased_plan, chosen, repeated=True)

    def _lease(self, wanted: Fetch, chosen: RecipeChoice, leased_plan: Plan) -> dict[str, Any]:
        now = self.clock()
        row = {
            "batch_uid": self.new_uid(),
            "consumer": wanted.consumer,
            "request_id": wanted.request_id,
            "channel": leased_plan.recipe.channel,
            "state": "leased",
            "shared": wanted.shared,
            "plan_hash": leased_plan.hash,
            "recipe_name": chosen.name,
            "recipe_version": chosen.version,
            "policy_version": self.policy_version(leased_plan.recipe.channel),
            **{name: leased_plan.counts[name] for name in ("n_groups", "n_trajectories", "n_steps", "n_tokens")},
            "leased_at": now,
            "expires_at": now + wanted.lease_s,
        }
        self.pool.batches.lease(row, leased_plan.steps, serialize_plan(leased_plan))
        return {"finished_at": None, "update_index": None, **row}

    def _view(self, wanted: Fetch) -> View:
        return wanted.view or View() if wanted.view_name is None else self.pool.views.get(wanted.view_name)
