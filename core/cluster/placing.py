"""Starts and finds the supervisor in a Ray cluster."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from core.cluster.supervisor import NAME, NAMESPACE, START_S, STOP_S
from core.errors import Conflict, InvalidInput, StudioError

_BY_VALUE: Final = ("core.cluster.agent", "core.cluster.supervisor")
"""Modules of the actors, which are sent with them: the cluster's Python need not have the studio."""


def connect(address: str) -> Any:
    """Connect to a Ray cluster; returns the module ``ray``.

    Args:
        address: ``auto``, or ``host:port`` of its GCS.

    Raises:
        InvalidInput: there is no Ray here, or no cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise InvalidInput(
            "Ray is not installed", field="ray", hint="pip install 'claw-studio[ray]' in the version of the cluster"
        ) from error
    if not ray.is_initialized():
        try:
            ray.init(address=address, namespace=NAMESPACE, logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise InvalidInput(
                f"no Ray cluster at {address!r}: {first}", field="address", hint="ray start --head, or name its address"
            ) from error
    return ray


def up(address: str, options: Mapping[str, Any], *, pool_address: str | None = None) -> dict[str, Any]:
    """Start the supervisor on the pool node, and wait until the studio takes calls.

    Args:
        options: of ``core.cluster.supervisor.Supervisor``.
        pool_address: address of the pool node; None: the node of the caller, or the head.

    Returns:
        ``{pid, base_url}`` of the studio.

    Raises:
        Conflict: a supervisor with other options runs.
        InvalidInput: as ``connect``, or no such node.
        StudioError: the studio did not start.
    """
    ray = connect(address)
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node_id = _pool_node(ray, pool_address)
    found = supervisor(ray)
    if found is None:
        for name in _BY_VALUE:
            ray.cloudpickle.register_pickle_by_value(import_module(name))
        agent, keeper = (import_module(name) for name in _BY_VALUE)
        actor = ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=8)(keeper.Supervisor)
        found = actor.options(
            name=NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        ).remote(dict(options), agent.NodeAgent)
    elif ray.get(found.status.remote(), timeout=30)["hub"] != options["hub"]:
        raise Conflict("this Ray cluster has a studio with another address", hint="claw-studio cluster down")
    ready: dict[str, Any] = ray.get(found.ready.remote(), timeout=START_S + 60)
    if "problem" in ready:
        raise StudioError(ready["problem"], field="cluster", hint="claw-studio cluster down; then try again")
    return ready


def status(address: str) -> dict[str, Any] | None:
    """The supervisor's status; None if there is none."""
    ray = connect(address)
    found = supervisor(ray)
    state: dict[str, Any] | None = None if found is None else ray.get(found.status.remote(), timeout=30)
    return state


def down(address: str) -> bool:
    """End agents, studio and supervisor in order; False if there was none."""
    ray = connect(address)
    found = supervisor(ray)
    if found is None:
        return False
    ray.get(found.stop.remote(), timeout=4 * STOP_S)
    ray.kill(found)
    return True


def supervisor(ray: Any) -> Any:
    """The supervisor's actor, or None."""
    try:
        return ray.get_actor(NAME, namespace=NAMESPACE)
    except ValueError:
        return None


def pool_address_of(ray: Any, pool_address: str | None) -> str:
    """The address of the node that holds the pool."""
    node_id = _pool_node(ray, pool_address)
    return str(next(one["NodeManagerAddress"] for one in ray.nodes() if one["NodeID"] == node_id))


def _pool_node(ray: Any, pool_address: str | None) -> str:
    alive = {one["NodeManagerAddress"]: one["NodeID"] for one in ray.nodes() if one["Alive"]}
    if pool_address is None:
        return str(ray.get_runtime_context().get_node_id())
    if pool_address not in alive:
        raise InvalidInput(
            f"no node {pool_address!r} in the cluster", field="pool_address", hint=json.dumps(sorted(alive))
        )
    return str(alive[pool_address])
