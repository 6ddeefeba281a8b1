"""Measures capture throughput: the engine alone, the gateway (durable) and peers, in one run.

    python bench/gateway/bench_capture.py [--seconds 1] [--rounds 1] [--more 4] [--upstream FOLDER]

Peers are measured when their environment is there:

    python -m venv .cache/peers-rllm && .cache/peers-rllm/bin/pip install rllm-model-gateway==0.1.0
    python -m venv .cache/peers-litellm && .cache/peers-litellm/bin/pip install "litellm[proxy]==1.106.2"
    .cache/trainers/verl/bin/python -m pip install fastapi uvicorn      # beside verl (.ci/run), for Claw-R1's gateway

Claw-R1 is taken from ``--upstream`` (or CLAW_UPSTREAM), a folder with the git directory ``AgentR1+Claw-R1/repo``.

All servers run at once and idle while another is measured. Each case (size, connections, streaming) is measured on all
of them in turn, round by round, so that other work on the machine meets all; of each server the best round counts, the
one that was disturbed least, and ratios are also given as the median of those within a round. ``--more`` rounds of the
cases that the goals name. Ratios say something, the absolute numbers only with this machine in mind.
Writes bench/results/gateway.json.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import secrets
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULTS = ROOT / "bench" / "results" / "gateway.json"
CACHE = ROOT / ".cache"
RLLM = CACHE / "peers-rllm" / "bin" / "rllm-model-gateway"
LITELLM = CACHE / "peers-litellm" / "bin" / "litellm"
VERL = CACHE / "trainers" / "verl" / "bin" / "python"
ENGINE, OURS, TWO = "engine", "claw-studio", "claw-studio, 2 processes"
START_TIMEOUT_S = 120.0


class Case(NamedTuple):
    """One load."""

    size: str
    connections: int
    stream: bool
    growing: bool = False

    @property
    def name(self) -> str:
        """The name in the results."""
        return f"{self.size}, {self.connections} connections" + (", streaming" if self.stream else "")


CASES = [Case(size, n, stream) for size in ("small", "agentic") for n in (1, 16, 128) for stream in (False, True)]
GOALS = [Case("small", 1, False), Case("small", 16, False)]


@dataclass
class Target:
    """A server under test and what was measured on it."""

    name: str
    url: str
    about: str
    key: str = "bench-key-of-some-length"
    streams: bool = True
    process: subprocess.Popen[str] | None = None
    runs: dict[Case, list[dict[str, Any]]] = field(default_factory=dict)


def about_run(load_before: float, started: float, **more: Any) -> dict[str, Any]:
    """When and on what machine a benchmark ran. ``started``: by ``time.monotonic``; ``more``: of the machine."""
    return {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpus": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "load_before": round(load_before, 2),
            "load_after": round(os.getloadavg()[0], 2),
            "took_s": round(time.monotonic() - started),
            **more,
        },
    }


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], log: Path, *, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_API_KEY": "none", "PYTHONPATH": str(ROOT)}
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, text=True, env=env, cwd=cwd
        )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            # Ours end with their stdin, and take their own children along.
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def ready_line(log: Path, process: subprocess.Popen[str]) -> dict[str, Any]:
    """The JSON line that one of our own servers prints when it is ready."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith('{"ready"'):
                return dict(json.loads(line))
        time.sleep(0.05)
    raise RuntimeError(f"no ready line: {log.read_text()[-2000:]}")


def ready_port(log: Path, process: subprocess.Popen[str]) -> int:
    """The port in that line."""
    return int(ready_line(log, process)["port"])


def wait_listening(port: int, process: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise RuntimeError(f"nothing listens on {port}: {log.read_text()[-2000:]}")


def drive(target: Target, case: Case, seconds: float) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "load.py"), "drive", target.url, str(case.connections), str(seconds)]
    command += [target.key, case.size, *(["stream"] if case.stream else []), *(["growing"] if case.growing else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def family(pid: int) -> list[int]:
    """A process and all below it."""
    pids = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                pids += family(int(child))
    return pids


def cpu_s(pids: list[int]) -> float:
    """CPU seconds used so far; the measure that other work on the machine disturbs least."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def rss_mib(pids: list[int]) -> float:
    """Resident memory."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(total * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def sync_ms(directory: Path) -> float:
    """Median time of writing 8 KB and syncing it, milliseconds."""
    times = []
    with (directory / "sync").open("wb", buffering=0) as file:
        for _ in range(50):
            file.write(b"x" * 8192)
            started = time.perf_counter()
            getattr(os, "fdatasync", os.fsync)(file.fileno())
            times.append(time.perf_counter() - started)
    return round(statistics.median(times) * 1e3, 3)


def start_all(stack: contextlib.ExitStack, work: Path, upstream_dir: Path | None) -> list[Target]:
    log = work / "upstream.log"
    upstream = stack.enter_context(running([sys.executable, str(HERE / "load.py"), "upstream", "0"], log))
    base = f"http://127.0.0.1:{ready_port(log, upstream)}"
    targets = [Target(ENGINE, f"{base}/v1", "the instant upstream itself", process=upstream)]
    for name, n, about in ((OURS, [], "one process"), (TWO, ["2"], "two processes on one port")):
        folder = work / f"ours{len(n)}"
        log = work / f"{folder.name}.log"
        command = [sys.executable, str(HERE / "serve.py"), str(folder), f"{base}/v1", *n]
        process = stack.enter_context(running(command, log))
        url = f"http://127.0.0.1:{ready_port(log, process)}/v1"
        targets.append(Target(name, url, f"{about}, every call synced to disk before its reply", process=process))
    for start in (start_rllm, start_litellm):
        targets += start(stack, work, base)
    if upstream_dir is not None and VERL.exists():
        targets += start_clawr1(stack, work, base, upstream_dir)
    return targets


def start_rllm(stack: contextlib.ExitStack, work: Path, base: str) -> Iterator[Target]:
    for store in ("memory", "sqlite") if RLLM.exists() else ():
        port = free_port()
        # Its URL for a worker ends before /v1.
        command = [str(RLLM), "--port", str(port), "--worker", base, "--store", store]
        command += ["--db-path", str(work / "rllm.db"), "--log-level", "WARNING"]
        log = work / f"rllm-{store}.log"
        process = stack.enter_context(running(command, log, cwd=work))
        wait_listening(port, process, log)
        url = f"http://127.0.0.1:{port}/sessions/bench/v1"
        yield Target(f"rllm-model-gateway {store}", url, "rllm-model-gateway 0.1.0", process=process)


def start_litellm(stack: contextlib.ExitStack, work: Path, base: str) -> Iterator[Target]:
    if not LITELLM.exists():
        return
    port = free_port()
    config = work / "litellm.yaml"
    params = {"model": "openai/bench", "api_base": f"{base}/v1", "api_key": "none"}
    # It does not start without a key.
    key = "sk-" + secrets.token_hex(32)
    models = [{"model_name": "bench", "litellm_params": params}]
    # JSON is YAML.
    config.write_text(json.dumps({"model_list": models, "general_settings": {"master_key": key}}))
    command = [str(LITELLM), "--config", str(config), "--port", str(port), "--telemetry", "False"]
    log = work / "litellm.log"
    process = stack.enter_context(running(command, log, cwd=work))
    wait_listening(port, process, log)
    about = "LiteLLM proxy 1.106.2, no capture"
    yield Target("litellm proxy", f"http://127.0.0.1:{port}/v1", about, key=key, process=process)


def start_clawr1(stack: contextlib.ExitStack, work: Path, base: str, upstream_dir: Path) -> Iterator[Target]:
    git = ["git", f"--git-dir={upstream_dir / 'AgentR1+Claw-R1' / 'repo'}", "archive", "HEAD", "claw_r1"]
    with tarfile.open(fileobj=io.BytesIO(subprocess.run(git, capture_output=True, check=True).stdout)) as archive:
        archive.extractall(work / "clawr1", filter="data")
    tokenizer = str(ROOT / "core" / "serving" / "assets")
    log = work / "clawr1.log"
    command = [str(VERL), str(HERE / "clawr1.py"), str(work / "clawr1"), base, tokenizer]
    try:
        process = stack.enter_context(running(command, log))
        port = ready_port(log, process)
        wait_listening(port, process, log)
    except RuntimeError as error:
        print(f"Claw-R1's gateway did not start: {error}", flush=True)
        return
    about = "its data pool in a Ray actor, in memory; it tokenizes each prompt and answer itself"
    yield Target("claw-r1", f"http://127.0.0.1:{port}/t/p/v1", about, streams=False, process=process)


def measure(target: Target, case: Case, seconds: float) -> None:
    assert target.process is not None
    pids = family(target.process.pid)
    before = cpu_s(pids)
    run = drive(target, case, seconds)
    if run["requests"]:
        run["cpu_ms_per_request"] = round((cpu_s(pids) - before) * 1e3 / run["requests"], 3)
    run["rss_mib"] = rss_mib(pids)
    target.runs.setdefault(case, []).append(run)
    print(f"{target.name:26} {case.name:34} {json.dumps(run)}", flush=True)


def summary(target: Target) -> dict[str, Any]:
    cases = {}
    for case, runs in target.runs.items():
        best = max(runs, key=lambda run: run["requests_per_s"])
        kept = {name: best[name] for name in ("requests_per_s", "p50_ms", "p99_ms", "errors", "rss_mib")}
        costs = [run["cpu_ms_per_request"] for run in runs if "cpu_ms_per_request" in run]
        kept["cpu_ms_per_request"] = min(costs) if costs else None
        cases[case.name] = {**kept, "requests_per_s_of_rounds": [run["requests_per_s"] for run in runs]}
    return {"about": target.about, "cases": cases}


def ratios(targets: list[Target], peers: list[Target]) -> dict[str, Any]:
    """How many times what each peer does, per case: the best rounds, and the median of the rounds one by one."""
    (ours,) = (target for target in targets if target.name == OURS)
    results: dict[str, Any] = {}
    for case, runs in ours.runs.items():
        for peer in peers:
            theirs = peer.runs.get(case)
            if not theirs or not all(run["requests_per_s"] for run in theirs):
                continue
            rates, others = ([run["requests_per_s"] for run in found_runs] for found_runs in (runs, theirs))
            cpu = [run.get("cpu_ms_per_request") for run in (*runs, *theirs)]
            least = [min(run["cpu_ms_per_request"] for run in some) for some in (theirs, runs)] if all(cpu) else None
            results.setdefault(case.name, {})[peer.name] = {
                "best": round(max(rates) / max(others), 1),
                "median_of_rounds": round(statistics.median(a / b for a, b in zip(rates, others, strict=True)), 1),
                "cpu_per_request": round(least[0] / least[1], 1) if least else None,
            }
    return results


def added_ms(targets: list[Target]) -> dict[str, float]:
    """What a call takes longer through the gateway than without, at one connection: median, milliseconds."""
    by_name = {target.name: target for target in targets}
    case = Case("small", 1, False)
    p50 = {name: min(run["p50_ms"] for run in by_name[name].runs[case]) for name in (ENGINE, OURS)}
    return {"p50_added_ms": round(p50[OURS] - p50[ENGINE], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--more", type=int, default=4)
    parser.add_argument("--upstream", type=Path, default=os.environ.get("CLAW_UPSTREAM"))
    options = parser.parse_args()
    started = time.monotonic()
    # Beside the repository's own files, not in a memory file system: syncs must be real.
    CACHE.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=CACHE)))
        targets = start_all(stack, work, Path(options.upstream) if options.upstream else None)
        for target in targets:
            for size in ("small", "agentic"):
                drive(target, Case(size, 4, False), 0.7)
        load = os.getloadavg()[0]
        sync = sync_ms(work)
        for case in [*CASES * options.rounds, *GOALS * options.more]:
            for target in targets:
                if target.streams or not case.stream:
                    measure(target, case, options.seconds)
    peers = [target for target in targets if target.name not in (ENGINE, OURS, TWO)]
    document = {
        **about_run(load, started, sync_8kb_ms=sync),
        "versions": {name: version(name) for name in ("httptools", "orjson", "starlette", "uvicorn", "uvloop")},
        "requests": {
            "small": "6 KB chat request; answer of 500 prompt and 50 response token ids with log-probs",
            "agentic": "60 KB chat request of 80 messages; answer of 15,000 prompt and 300 response token ids",
        },
        "seconds_per_run": options.seconds,
        "results": {target.name: summary(target) for target in targets},
        "times_what_peers_do": ratios(targets, peers),
        **added_ms(targets),
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
