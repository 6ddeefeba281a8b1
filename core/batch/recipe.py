"""The recipe: an algorithm and its settings, validated and immutable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core import credit
from core.credit import Estimator, Needs
from core.errors import InvalidInput
from core.rewards.policy import parse_policy
from core.types import EXACT_TOKEN_SOURCES, TokenSource


class Recipe(BaseModel):
    """How a plan is made from a view. ``parse_recipe`` makes one from external data; its errors name the field."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: str = Field("grpo", description="Advantage estimator, or sft")
    options: dict[str, Any] = Field(default_factory=dict, description="Options of the estimator")
    channel: str = Field("train", min_length=1, description="Partition of the pool")
    view: str | None = Field(
        None,
        min_length=1,
        description="Saved view of its steps; none: the view of the request",
    )
    dataset: str | None = Field(
        None, min_length=1, description="Dataset version to train on, as it was frozen; none: the pool as it is now"
    )
    n_rollouts: int | None = Field(
        None,
        ge=1,
        description="Trajectories per prompt group: groups with fewer are excluded, further ones are not used",
    )
    batch_size: int | None = Field(None, ge=1, description="Maximum of prompt groups; none: all")
    max_staleness: int | None = Field(None, ge=0, description="Maximum of policy versions that a step may be behind")
    policy_version: int | None = Field(
        None,
        ge=0,
        description="Policy version that staleness is counted from; none: the current one",
    )
    token_budget: int = Field(32768, ge=1, description="Longest packed row, tokens; longer steps are excluded")
    n_ranks: int = Field(
        1,
        ge=1,
        le=65536,
        description="Data-parallel ranks of the trainer: packed rows are distributed over them by equal work",
    )
    token_sources: tuple[TokenSource, ...] | None = Field(
        None,
        description="Which ids to trust; not set: exact ones for ratio-based algorithms, any for supervised. 'none' "
        "among them: also steps that have texts only, for formats of texts",
    )
    order: Literal["fifo", "newest", "difficulty", "variance"] = Field(
        "fifo", description="Which ready groups come first: oldest, newest, closest to a mean reward, widest spread"
    )
    difficulty_target: float = Field(0.5, description="Mean group reward that the order 'difficulty' prefers")
    min_rollouts: int | None = Field(
        None,
        ge=1,
        description="Least trajectories of a group, counted as trajectories and not as rows; none: all n_rollouts",
    )
    balance: Literal["first", "spread"] = Field(
        "first", description="Which of too many trajectories: the first, or the best and worst alternately"
    )
    drop_flat_groups: bool = Field(False, description="Exclude groups whose rewards are equal (DAPO filter)")
    drop_dead_leaves: bool = Field(
        False, description="Exclude answers that nothing continues and whose prompt was sent again later"
    )
    drop_compacted: bool = Field(False, description="Exclude steps that follow a compaction of the context")
    max_leaves: int | None = Field(
        None, ge=1, description="Most ends that the steps of a trajectory may have: forks and compactions add ends"
    )
    max_prompt_tokens: int | None = Field(None, ge=1, description="Longest prompt of a step, tokens")
    max_response_tokens: int | None = Field(None, ge=1, description="Longest response of a step, tokens")
    rewards: tuple[str, ...] | str | dict[str, Any] | None = Field(
        None,
        description="Which trajectory rewards count. A list: the first available source of annotations "
        "(verifier, judge, human, ...), complete (given at completion), steps (their sum). A text: a reward policy by "
        "its name, or name@version. An object: such a policy itself. None: the reward in effect",
    )
    loss: Literal["all", "last_step"] = Field("all", description="Steps of a trajectory in the loss: all, or its last")
    temperature: float | None = Field(
        None, ge=0, description="Exclude steps that were sampled at a different or unknown temperature"
    )
    value_model: str | None = Field(
        None, description="Critic whose stored values count (claw-studio values); none: what producers sent"
    )
    max_uses: int | None = Field(
        1, ge=1, description="Batches that may consume a trajectory, counted at a fetch; none: any number"
    )
    require_complete: bool = Field(True, description="Exclude trajectories that are not complete")

    @property
    def estimator(self) -> Estimator:
        """The registry's entry. InvalidInput for an unknown algorithm."""
        return credit.get(self.algorithm)

    @property
    def settings(self) -> dict[str, Any]:
        """The estimator's options, checked and complete."""
        return self.estimator.settings(self.options)

    @property
    def needs(self) -> Needs:
        """The algorithm's needs of a batch."""
        return self.estimator.needs(self.settings)

    @property
    def trusted_sources(self) -> frozenset[str]:
        """Token sources whose steps may be trained on."""
        if self.token_sources is not None:
            return frozenset(self.token_sources)
        if self.needs.exact_tokens:
            return EXACT_TOKEN_SOURCES
        return frozenset(TokenSource) - {TokenSource.NONE}

    def to_json(self) -> dict[str, Any]:
        """JSON values, estimator options complete: equal recipes give equal JSON."""
        options = {name: value for name, value in self.settings.items() if (name, value) not in LATER_OPTIONS}
        fields = {**self.model_dump(mode="json"), "options": options}
        # A recipe without these fields keeps the hash that it had before the fields existed.
        return {name: value for name, value in fields.items() if name not in LATER or value not in (None, False)}


LATER = ("view", "dataset", "drop_dead_leaves", "drop_compacted", "max_leaves")
"""Fields that are left out of a recipe's JSON while they are not set."""
LATER_OPTIONS = (("edits", "with"),)
"""Options with defaults that are left out of a recipe's JSON, for the same reason."""


def parse_recipe(data: Mapping[str, Any] | None) -> Recipe:
    """A recipe from JSON; None gives the defaults.

    Raises:
        InvalidInput: an unknown field, a wrong value, an unknown algorithm or option; names the field.
    """
    try:
        recipe = Recipe.model_validate({} if data is None else dict(data))
    except ValidationError as err:
        first = err.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        hint = f"fields: {', '.join(Recipe.model_fields)}" if first["type"] == "extra_forbidden" else None
        raise InvalidInput(f"recipe: {first['msg']}", field=f"recipe.{name}", hint=hint) from err
    try:
        recipe.estimator.settings(recipe.options)
    except InvalidInput as err:
        raise InvalidInput(f"recipe: {err.message}", field=f"recipe.{err.field}", hint=err.hint) from err
    if recipe.min_rollouts is not None and recipe.n_rollouts is not None and recipe.min_rollouts > recipe.n_rollouts:
        raise InvalidInput("recipe: min_rollouts is at most n_rollouts", field="recipe.min_rollouts")
    if recipe.needs.exact_tokens and TokenSource.NONE in recipe.trusted_sources:
        raise InvalidInput(f"recipe: {recipe.algorithm} needs token ids", field="recipe.token_sources")
    if recipe.needs.exact_tokens and TokenSource.EDITED in recipe.trusted_sources:
        raise InvalidInput(
            f"recipe: {recipe.algorithm} needs sampled tokens, and edited answers were not sampled",
            field="recipe.token_sources",
            hint="leave 'edited' out; sft and dpo take edited answers",
        )
    if isinstance(recipe.rewards, Mapping):
        try:
            parse_policy(recipe.rewards)
        except InvalidInput as err:
            raise InvalidInput(f"recipe: {err.message}", field="recipe.rewards", hint=err.hint) from err
    least = recipe.needs.min_group_size
    if recipe.n_rollouts is not None and recipe.n_rollouts < least:
        raise InvalidInput(
            f"recipe: {recipe.algorithm} compares at least {least} trajectories of a group",
            field="recipe.n_rollouts",
            hint=f"at least {least}, or none for all of the group",
        )
    return recipe


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What differs between two recipes' JSON: ``{field, a, b}`` by field, options one by one; absent is None."""
    flat_a, flat_b = ({**_without_options(one), **_options(one)} for one in (a, b))
    names = sorted(flat_a.keys() | flat_b.keys())
    return [
        {"field": name, "a": flat_a.get(name), "b": flat_b.get(name)}
        for name in names
        if flat_a.get(name) != flat_b.get(name)
    ]


def _without_options(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in recipe.items() if name != "options"}


def _options(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {f"options.{name}": value for name, value in recipe.get("options", {}).items()}
