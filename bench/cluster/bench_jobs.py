"""A Ray Data job at one worker and at two, each worker with the same share of a processor.

    .cache/trainers/ray/bin/python bench/cluster/bench_jobs.py [--quota 0.25] [--groups 40] [--repeats 2]

Run it with the interpreter that has Ray, as root: each worker node, its raylet and all that it starts, is put into a
cgroup with ``--quota`` processors. Where that is not possible each gets one processor of its own by affinity, which it
shares with the head. The head runs no tasks; it joins the parts, which is in the time. Processes are
started and packages imported before. A part is one prompt group of 8 rollouts with 50 steps, about 6.5 M tokens. The
bytes are compared with those of one process without Ray. Each share's periods of 0.1 s with work show whether both
workers had some, and the throttled ones whether the quota was what limited them. Writes
bench/results/jobs.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.pool.generate import ensure  # noqa: E402
from core.batch.plan import plan  # noqa: E402
from core.batch.recipe import parse_recipe  # noqa: E402
from core.cluster.jobs import export_on_ray  # noqa: E402
from core.export import export  # noqa: E402
from core.export.joining import export_dataset  # noqa: E402
from core.export.parts import StepDataset  # noqa: E402
from core.pool import Pool  # noqa: E402
from core.types import View  # noqa: E402

CPU = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 100_000
GROUP = 8
SMALL = {"object_store_memory": 100 << 20, "include_dashboard": False, "include_log_monitor": False}


def descendants(pid: int) -> Iterator[int]:
    """A process and all that it started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from descendants(int(child))


class Share:
    """A worker's share of the processors: a cgroup with a quota, or one processor."""

    def __init__(self, number: int, quota: float) -> None:
        self.number = number
        self.folder: Path | None = CPU / f"claw-jobs-{os.getpid()}-{number}"
        try:
            self.folder.mkdir()
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.folder / "cpu.cfs_quota_us").write_text(str(int(quota * PERIOD_US)))
        except OSError:
            self.folder = None

    @property
    def kind(self) -> str:
        """How it is limited, in words."""
        return "one processor by affinity" if self.folder is None else "cgroup quota"

    def put(self, pid: int) -> None:
        """All of these processes; those that they start later inherit it."""
        for _ in range(2):
            for one in list(descendants(pid)):
                with contextlib.suppress(ProcessLookupError):
                    if self.folder is None:
                        os.sched_setaffinity(one, {self.number % (os.cpu_count() or 1)})
                    else:
                        (self.folder / "cgroup.procs").write_text(str(one))

    def used(self) -> dict[str, int]:
        """So far: periods of 0.1 s in which it had work, and those in which the quota was used up. None by affinity."""
        if self.folder is None:
            return {}
        stat = dict(line.split() for line in (self.folder / "cpu.stat").read_text().splitlines())
        return {"periods": int(stat["nr_periods"]), "throttled": int(stat["nr_throttled"])}

    def end(self) -> None:
        """Remove the cgroup, which must be empty."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self.folder.rmdir()


def warm(node_ids: list[str], dataset: Path, formats: list[str], out: Path) -> None:
    """Start a worker process on each node and write a part in it; then a job of Ray Data that does nothing."""
    import ray
    import ray.data
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote(num_cpus=1)
    def write(folder: str) -> None:
        import ray.data  # noqa: F401

        from core.export.joining import export_part, exporter_of

        Path(folder).mkdir(parents=True)
        for name in formats:
            export_part(dataset, 0, name, exporter_of(name).settings({}), Path(folder))

    strategies = [NodeAffinitySchedulingStrategy(node_id, soft=False) for node_id in node_ids]
    ray.get([write.options(scheduling_strategy=one).remote(str(out / str(at))) for at, one in enumerate(strategies)])
    numbers = [{"number": number} for number in range(8)]
    list(ray.data.from_items(numbers, override_num_blocks=8).map(lambda row: row, num_cpus=1).iter_rows())


def measured(dataset: Path, formats: list[str], quota: float, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """By format: seconds and hash at one worker and at two."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **SMALL})
    ray.init(address=cluster.address, log_to_driver=False)
    shares: list[Share] = []
    nodes: list[Any] = []
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in formats}
    for n in (1, 2):
        nodes.append(cluster.add_node(num_cpus=1, **SMALL))
        cluster.wait_for_nodes()
        shares.append(Share(n - 1, quota))
        shares[-1].put(nodes[-1].all_processes["raylet"][0].process.pid)
        warm([node.node_id for node in nodes], dataset, formats, folder / f"warm-{n}")
        for name in formats:
            out = folder / f"{name}-{n}"
            before = [share.used() for share in shares]
            began = time.perf_counter()
            result = export_on_ray(dataset, name, out)
            seconds = time.perf_counter() - began
            used = [
                {what: value - then[what] for what, value in share.used().items()}
                for share, then in zip(shares, before, strict=True)
            ]
            row = {"workers": n, "seconds": round(seconds, 2), "sha256": result.manifest["sha256"]}
            results[name].append({**row, "shares": used, "load": os.getloadavg()[0]})
            print(name, results[name][-1], flush=True)
    ray.shutdown()
    cluster.shutdown()
    for share in shares:
        share.end()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quota", type=float, default=0.25, help="processors of each worker")
    parser.add_argument("--groups", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--formats", nargs="+", default=["group_trees", "trl_sft"])
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "jobs.json")
    given = parser.parse_args()
    os.environ |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    load = os.getloadavg()[0]
    source = ensure(given.groups * GROUP)
    with tempfile.TemporaryDirectory(dir=source.parent) as name:
        folder = Path(name)
        pool = Pool.open(source)
        recipe = {"algorithm": "sft", "options": {"min_reward": None}}
        made = plan(pool, View(), parse_recipe(recipe))
        dataset = export(made, pool, "steps_dataset", folder, options={"part_tokens": "1"}).path
        pool.close()
        alone: dict[str, Any] = {}
        for form in given.formats:
            cpu = time.process_time()
            result = export_dataset(dataset, form, folder / "alone")
            alone[form] = {"sha256": result.manifest["sha256"], "cpu_seconds": round(time.process_time() - cpu, 2)}
        rounds = []
        for number in range(given.repeats):
            (folder / str(number)).mkdir()
            rounds.append(measured(dataset, given.formats, given.quota, folder / str(number)))
        head = StepDataset.open(dataset).head
    formats = {}
    for form in given.formats:
        times = [[one["seconds"] for one in each[form]] for each in rounds]
        formats[form] = {
            "seconds": times,
            "shares": [[one["shares"] for one in each[form]] for each in rounds],
            "load": [[one["load"] for one in each[form]] for each in rounds],
            "speed_up": [round(one / two, 2) for one, two in times],
            "median_speed_up": round(statistics.median(one / two for one, two in times), 2),
            "same_bytes": {row["sha256"] for each in rounds for row in each[form]} == {alone[form]["sha256"]},
            "cpu_seconds_alone": alone[form]["cpu_seconds"],
        }
    probe = Share(9, given.quota)
    probe.end()
    results = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cpus": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}", "load_before": load},
        "versions": {one: version(one) for one in ("ray", "pyarrow", "numpy")},
        "about": "seconds are [one worker, two workers], once for each repeat, from the call to the joined file; "
        "shares are what each worker's cgroup used in that time",
        "share": {"kind": probe.kind, "processors": given.quota},
        "parts": len(head["parts"]),
        "n_tokens": head["n_tokens"],
        "formats": formats,
    }
    given.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
