"""A Ray cluster of several nodes on this machine, in a process of the interpreter that has Ray.

    python -m tests.cluster.driver CPUS [DASHBOARD_PORT]

CPUS are those of each node but the head, which runs no tasks. With a port, the head has the dashboard: it takes jobs.

The head has the machine's address: Ray replaces 127.0.0.1 by it. Orders come on stdin, one JSON object per line, and
each is answered with one: ``{"add": address}``, ``{"kill": address}`` (every process of the node, at once),
``{"freeze": address}`` and ``{"thaw": address}`` (its raylet). It ends with stdin.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from ray.cluster_utils import Cluster

# Without CPUs no worker is started before an actor needs one. A head's agent would have the same port on each cluster.
SMALL = {
    "num_cpus": 0,
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
    "include_log_monitor": False,
    "dashboard_agent_listen_port": 0,
}


def patiently(start: Callable[[], Any]) -> Any:
    """Ray gives a node 30 seconds to start, which a machine with other work may not have for it."""
    for _ in range(4):
        try:
            return start()
        except Exception as error:
            if "timed out" not in str(error):
                raise
            last = error
    raise last


def main() -> None:
    """See the module."""
    # Prints of Ray must not mix with answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields: object) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    node = {**SMALL, "num_cpus": int(sys.argv[1])}
    head = {**SMALL, "include_dashboard": True, "dashboard_port": int(sys.argv[2])} if len(sys.argv) > 2 else SMALL
    cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
    nodes = {}
    answer(address=cluster.address)
    for line in sys.stdin:
        ((what, address),) = json.loads(line).items()
        if what == "add":
            nodes[address] = patiently(lambda address=address: cluster.add_node(node_ip_address=address, **node))
        elif what == "kill":
            cluster.remove_node(nodes.pop(address), allow_graceful=False)
        else:
            sign = signal.SIGSTOP if what == "freeze" else signal.SIGCONT
            for process in nodes[address].all_processes["raylet"]:
                os.kill(process.process.pid, sign)
        answer(done=what)
    cluster.shutdown()


if __name__ == "__main__":
    main()
