"""A Ray cluster of several nodes on this machine, in a process of the interpreter that has Ray.

It obeys orders, one JSON object per line on stdin, and answers each with one: ``{"add": address}``, ``{"kill":
address}`` (every process of the node, at once), ``{"freeze": address}`` and ``{"thaw": address}`` (its raylet). It ends
with stdin.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from ray.cluster_utils import Cluster

SMALL = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}


def main() -> None:
    """See the module."""
    # Prints of Ray must not mix with answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields: object) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    cluster = Cluster(initialize_head=True, head_node_args={"node_ip_address": "127.0.0.1", **SMALL})
    nodes = {}
    answer(address=cluster.address)
    for line in sys.stdin:
        ((what, address),) = json.loads(line).items()
        if what == "add":
            nodes[address] = cluster.add_node(node_ip_address=address, **SMALL)
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
