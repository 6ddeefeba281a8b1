"""A real Ray cluster on this machine: a head and a fake node with an address of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.cluster.supervisor import node_name
from tests.cluster.installed import ROOT

ADDRESS = "127.0.0.2"
NODE = node_name(ADDRESS)
PATIENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A machine with other work takes its time to start them.
    "RAY_raylet_start_wait_time_s": "180",
    "RAY_gcs_server_request_timeout_seconds": "180",
}


class RayCluster:
    """A head, which gets the pool, and a node.

    Args:
        n_cpus: of the node.
        dashboard_port: the head takes jobs at this port; None: it takes none.
        settings: variables of all processes of the cluster.
    """

    def __init__(self, python: Path, *, n_cpus: int = 0, dashboard_port: int | None = None, **settings: str) -> None:
        self.python = python
        arguments = [str(n_cpus), *([] if dashboard_port is None else [str(dashboard_port)])]
        self._driver = subprocess.Popen(
            [python, "-m", "tests.cluster.driver", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **PATIENT, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self._answer()["address"]
        self.order(add=ADDRESS)

    def order(self, **what: str) -> None:
        """Have the driver do it."""
        assert self._driver.stdin is not None
        print(json.dumps(what), file=self._driver.stdin, flush=True)
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._driver.stdout is not None
        line = self._driver.stdout.readline()
        assert line, f"the driver ended with {self._driver.wait(60)}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def command(self, what: str, *args: str, env: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """``claw-studio cluster WHAT``; its lines of JSON."""
        done = subprocess.run(
            [self.python, "-m", "core.cli", "cluster", what, "--ray", self.address, *args],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **PATIENT, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def close(self) -> None:
        """End all of it."""
        assert self._driver.stdin is not None
        self._driver.stdin.close()
        self._driver.wait(60)
