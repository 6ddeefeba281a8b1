"""Exports a dataset of steps on a Ray cluster of fake nodes; run with the interpreter that has Ray.

    python in_ray_jobs.py DATASET OUT CHUNK_TOKENS FORMAT...

Prints one line of JSON: by format the SHA-256 at 1, 2 and 3 workers, and with a node killed while it writes a part.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0


def hold_back(out: str, chunk_tokens: int) -> None:
    """In each worker: small row groups, and no part is begun while the file ``hold`` exists."""
    from core.batch import arrays
    from core.export import joining

    arrays.CHUNK_TOKENS = chunk_tokens
    export_part = joining.export_part

    def held(folder: Path, number: int, *arguments: Any) -> Any:
        import ray

        if (Path(out) / "hold").exists():
            (Path(out) / f"began-{ray.get_runtime_context().get_node_id()}").touch()
        while (Path(out) / "hold").exists():
            time.sleep(0.02)
        return export_part(folder, number, *arguments)

    joining.export_part = held


def main() -> None:
    import ray
    from ray.cluster_utils import Cluster

    from core.cluster import jobs
    from core.errors import InvalidInput

    dataset, out, chunk_tokens, formats = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    out.mkdir()
    # The head runs no tasks: the workers are the nodes that are added.
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": 80 << 20, "include_dashboard": False},
    )
    hook = {"worker_process_setup_hook": lambda: hold_back(str(out), chunk_tokens)}
    ray.init(address=cluster.address, log_to_driver=False, runtime_env=hook)
    results: dict[str, Any] = {"sha256": {name: [] for name in formats}}

    def run(folder: str, names: list[str]) -> None:
        for name in names:
            done = jobs.export_on_ray(dataset, name, out / folder)
            results["sha256"][name].append(done.manifest["sha256"])

    nodes = []
    for n in (1, 2, 3):
        nodes.append(cluster.add_node(num_cpus=1, object_store_memory=80 << 20))
        cluster.wait_for_nodes()
        run(str(n), formats)
    (out / "hold").touch()
    killer = threading.Thread(target=_kill_while_it_writes, args=(cluster, nodes[-1], out, results))
    killer.start()
    run("killed", formats)
    killer.join()
    results["n_alive"] = sum(node["Alive"] for node in ray.nodes()) - 1
    try:
        jobs.export_on_ray(dataset, "trl_grpo", out / "refused")
    except InvalidInput as error:
        results["refused"] = {"message": error.message, "field": error.field}
    print("RESULT " + json.dumps(results))
    ray.shutdown()
    cluster.shutdown()


def _kill_while_it_writes(cluster: Any, node: Any, out: Path, results: dict[str, Any]) -> None:
    """Kill a node once it has begun a part, then let the others go on."""
    deadline = time.monotonic() + PATIENCE_S
    began = out / f"began-{node.node_id}"
    while not began.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    results["had_begun"] = began.exists()
    cluster.remove_node(node, allow_graceful=False)
    (out / "hold").unlink()


if __name__ == "__main__":
    main()
