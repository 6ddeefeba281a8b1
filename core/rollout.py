"""Records rollouts: a trajectory call by call, or the episodes of a wrapped environment.

Standard library only; ``core.client`` provides the connection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from core.errors import Conflict, InvalidInput


class Sink(Protocol):
    """Receives steps, for example ``StudioClient``."""

    def submit(self, steps: Iterable[Mapping[str, Any]]) -> int:
        """Make steps durable; idempotent."""
        ...

    def complete(self, trajectory_uid: str, *, reward: float | None = None, outcome: str | None = None) -> None:
        """Close a trajectory."""
        ...


class Rollout:
    """Records one trajectory. Leaving the context completes it; an exception sets the outcome to ``error: ...``.

    Attributes:
        trajectory_uid: its uid.
        reward: reward of the whole trajectory, to be set before the context ends; None: the steps' rewards count.
        outcome: short description of how it ended.
    """

    def __init__(
        self, client: Sink, trajectory_uid: str, common: dict[str, Any], metadata: dict[str, Any], buffer: int
    ) -> None:
        self.trajectory_uid = trajectory_uid
        self.reward: float | None = None
        self.outcome: str | None = None
        self.n_steps = 0
        self._client = client
        self._common = common
        self._metadata = metadata
        self._buffer = max(1, buffer)
        self._waiting: list[dict[str, Any]] = []
        self._complete = False

    def step(
        self,
        *,
        prompt_ids: Sequence[int] | None = None,
        response_ids: Sequence[int] | None = None,
        response_logprobs: Sequence[float | None] | None = None,
        reward: float | None = None,
        is_last: bool = False,
        metadata: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> str:
        """Record one model call; returns its ``step_uid``. A reward of None means unscored; 0 is a score."""
        if self._complete:
            raise Conflict(f"trajectory {self.trajectory_uid!r} is complete", field="trajectory_uid")
        step_uid = fields.pop("step_uid", None) or f"{self.trajectory_uid}:{self.n_steps}"
        content = known(
            prompt_ids=ids_of(prompt_ids),
            response_ids=ids_of(response_ids),
            response_logprobs=_logprobs(response_logprobs),
            reward=reward_of(reward),
            **fields,
        )
        self._waiting.append(
            {
                **self._common,
                "trajectory_uid": self.trajectory_uid,
                "step_index": self.n_steps,
                "step_uid": step_uid,
                "is_last": is_last,
                "metadata": {**self._metadata, **(metadata or {})},
                **content,
            }
        )
        self.n_steps += 1
        if len(self._waiting) >= self._buffer:
            self.flush()
        return str(step_uid)

    def flush(self) -> None:
        """Send buffered steps; they are durable when this returns."""
        self._client.submit(self._waiting)
        self._waiting.clear()

    def complete(self) -> None:
        """Send buffered steps and complete the trajectory. A trajectory without steps is not recorded."""
        if self._complete:
            return
        self.flush()
        self._complete = True
        if self.n_steps:
            self._client.complete(self.trajectory_uid, reward=self.reward, outcome=self.outcome)

    def __enter__(self) -> Rollout:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self.outcome is None:
            self.outcome = f"error: {kind.__name__}"
        self.complete()


@dataclass(frozen=True, slots=True)
class Sampled:
    """A policy's sample, and the ``action`` to pass to the environment.

    ``fields`` are further step fields: ``messages``, ``response_message``, ``tools``, ``model``, ``sampling``, ...
    """

    action: Any
    prompt_ids: Sequence[int] | None = None
    response_ids: Sequence[int] | None = None
    response_logprobs: Sequence[float] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


class Environment(Protocol):
    """An environment with Gymnasium's ``reset(...)`` and ``step(action)``; Gymnasium is not imported."""

    def reset(self, **kwargs: Any) -> Any:
        """Begin an episode; returns an observation, or ``(observation, info)``."""
        ...

    def step(self, action: Any) -> Any:
        """Returns ``(observation, reward, terminated, truncated, info)`` or ``(observation, reward, done, info)``."""
        ...


class RecordedEnvironment:
    """Wraps an environment so that each episode is recorded as one trajectory.

        env = RecordedEnvironment(env, lambda: studio.rollout(prompt_uid="task-1"))
        observation = env.reset()
        while not done:
            sampled = policy(observation)  # a Sampled
            observation, reward, terminated, truncated, info = env.step(sampled)
            done = terminated or truncated

    Rewards are recorded unchanged: None stays None and 0 stays 0. A finished episode has the outcome ``terminated`` or
    ``truncated``; one that ``reset`` or ``close`` interrupts has ``abandoned``.
    """

    def __init__(self, env: Environment, begin: Callable[[], Rollout]) -> None:
        self.env = env
        self.rollout: Rollout | None = None
        self._begin = begin

    def reset(self, **kwargs: Any) -> Any:
        """Begin an episode and its trajectory; returns the environment's result."""
        self._end("abandoned")
        first = self.env.reset(**kwargs)
        self.rollout = self._begin()
        return first

    def step(self, sampled: Sampled) -> tuple[Any, float | None, bool, bool, Any]:
        """Step the environment with the sampled action, and record the sample with the reward."""
        if self.rollout is None:
            raise Conflict("no episode is in progress", field="step", hint="call reset() first")
        observation, reward, terminated, truncated, info = _gymnasium_result(self.env.step(sampled.action))
        self.rollout.step(
            prompt_ids=sampled.prompt_ids,
            response_ids=sampled.response_ids,
            response_logprobs=sampled.response_logprobs,
            reward=reward,
            is_last=terminated or truncated,
            **sampled.fields,
        )
        if terminated or truncated:
            self._end("terminated" if terminated else "truncated")
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """End the current episode, if any, and close the environment if possible."""
        self._end("abandoned")
        close = getattr(self.env, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> RecordedEnvironment:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end("abandoned" if kind is None else f"error: {kind.__name__}")
        self.close()

    def _end(self, outcome: str) -> None:
        rollout, self.rollout = self.rollout, None
        if rollout is not None:
            rollout.outcome = outcome
            rollout.complete()


def _gymnasium_result(result: Any) -> tuple[Any, float | None, bool, bool, Any]:
    """Gymnasium's five values; also accepts the older API's four."""
    if len(result) == 4:
        observation, reward, done, info = result
        return observation, reward, bool(done), False, info
    observation, reward, terminated, truncated, info = result
    return observation, reward, bool(terminated), bool(truncated), info


def known(**fields: Any) -> dict[str, Any]:
    """The entries that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def plain(values: Any) -> Any:
    """Convert arrays and tensors to lists."""
    return values.tolist() if hasattr(values, "tolist") else values


def ids_of(ids: Any) -> list[int] | None:
    """Token ids as plain integers."""
    return None if ids is None else [int(x) for x in plain(ids)]


def _logprobs(values: Any) -> list[float | None] | None:
    return None if values is None else [None if x is None else float(x) for x in plain(values)]


def reward_of(reward: Any) -> float | None:
    """A finite float or None. Raises InvalidInput."""
    if reward is None:
        return None
    value = float(reward)
    if not math.isfinite(value):
        raise InvalidInput(f"a reward can't be {value}", field="reward", hint="None leaves the step unscored")
    return value
