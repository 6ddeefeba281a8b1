"""Capture throughput: the engine itself, our gateway (one process, durable) and peers, in one run.

    python bench/gateway/bench_capture.py [--seconds 2] [--rounds 6]

Peers are measured when their environment is there:

    python -m venv .cache/peers-rllm && .cache/peers-rllm/bin/pip install rllm-model-gateway==0.1.0
    python -m venv .cache/peers-litellm && .cache/peers-litellm/bin/pip install "litellm[proxy]==1.106.2"

All servers run at once and idle while another is measured. Rounds go over all of them in turn, and of each the
best round counts, the one that other work on the machine disturbed least; the rates of all rounds stand beside it.
Ratios between the rows say something, the absolute numbers only with this machine in mind.
Writes bench/results/gateway.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULTS = ROOT / "bench" / "results" / "gateway.json"
RLLM = ROOT / ".cache" / "peers-rllm" / "bin" / "rllm-model-gateway"
LITELLM = ROOT / ".cache" / "peers-litellm" / "bin" / "litellm"
CONNECTIONS = (1, 16)
START_TIMEOUT_S = 90.0


@dataclass
class Target:
    """A server under test and what was measured on it."""

    name: str
    url: str
    about: str
    stream: bool = False
    key: str = "bench"
    process: subprocess.Popen[str] | None = None
    runs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)


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
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def ready_port(log: Path, process: subprocess.Popen[str]) -> int:
    """The port in the ready line of one of our own servers."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith('{"ready"'):
                return int(json.loads(line)["port"])
        time.sleep(0.05)
    raise SystemExit(f"no ready line: {log.read_text()}")


def wait_listening(port: int, process: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise SystemExit(f"nothing listens on {port}: {log.read_text()[-2000:]}")


def drive(target: Target, connections: int, seconds: float) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "load.py"), "drive", target.url, str(connections), str(seconds), target.key]
    command += ["stream"] if target.stream else []
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def cpu_s(process: subprocess.Popen[str]) -> float | None:
    """CPU seconds that a process has used; the measure that other work on the machine disturbs least."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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


def start_all(stack: contextlib.ExitStack, work: Path) -> list[Target]:
    log = work / "upstream.log"
    upstream = stack.enter_context(running([sys.executable, str(HERE / "load.py"), "upstream", "0"], log))
    base = f"http://127.0.0.1:{ready_port(log, upstream)}"
    log = work / "gateway.log"
    gateway = stack.enter_context(
        running([sys.executable, str(HERE / "serve.py"), str(work / "journal"), f"{base}/v1"], log)
    )
    ours = f"http://127.0.0.1:{ready_port(log, gateway)}/v1"
    targets = [
        Target("engine", f"{base}/v1", "the instant upstream itself", process=upstream),
        Target("claw-studio", ours, "one process, every call synced to disk before its reply", process=gateway),
        Target("claw-studio stream", ours, "the same, streaming to the agent", stream=True, process=gateway),
    ]
    if RLLM.exists():
        for store in ("memory", "sqlite"):
            port = free_port()
            # Its URL for a worker ends before /v1.
            command = [str(RLLM), "--port", str(port), "--worker", base, "--store", store]
            command += ["--db-path", str(work / "rllm.db"), "--log-level", "WARNING"]
            log = work / f"rllm-{store}.log"
            process = stack.enter_context(running(command, log, cwd=work))
            wait_listening(port, process, log)
            url = f"http://127.0.0.1:{port}/sessions/bench/v1"
            targets.append(Target(f"rllm-model-gateway {store}", url, "rllm-model-gateway 0.1.0", process=process))
    if LITELLM.exists():
        port = free_port()
        config = work / "litellm.yaml"
        params = {"model": "openai/bench", "api_base": f"{base}/v1", "api_key": "none"}
        # JSON is YAML.
        # It does not start without a key of its own.
        key = "sk-" + secrets.token_hex(32)
        models = [{"model_name": "bench", "litellm_params": params}]
        config.write_text(json.dumps({"model_list": models, "general_settings": {"master_key": key}}))
        command = [str(LITELLM), "--config", str(config), "--port", str(port), "--telemetry", "False"]
        log = work / "litellm.log"
        process = stack.enter_context(running(command, log, cwd=work))
        wait_listening(port, process, log)
        url = f"http://127.0.0.1:{port}/v1"
        targets.append(Target("litellm proxy", url, "LiteLLM proxy 1.106.2, no capture", key=key, process=process))
    return targets


def measure(target: Target, connections: int, seconds: float) -> None:
    assert target.process is not None
    before = cpu_s(target.process)
    run = drive(target, connections, seconds)
    after = cpu_s(target.process)
    if before is not None and after is not None and run["requests"]:
        run["cpu_ms_per_request"] = round((after - before) * 1e3 / run["requests"], 3)
    target.runs.setdefault(connections, []).append(run)
    print(f"{target.name:28} {json.dumps(run)}", flush=True)


def summary(target: Target) -> dict[str, Any]:
    rows = {}
    for connections, runs in target.runs.items():
        best = max(runs, key=lambda run: run["requests_per_s"])
        rows[str(connections)] = {**best, "requests_per_s_of_rounds": [run["requests_per_s"] for run in runs]}
    return {"about": target.about, "connections": rows}


def ratio(results: dict[str, Any], over: str, under: str, what: str) -> float | None:
    """``what`` of one target over that of another, at 16 connections."""
    numbers = [results[name]["connections"]["16"].get(what) for name in (over, under)]
    return round(numbers[0] / numbers[1], 1) if all(numbers) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    # Beside the repository's own files, not in a memory file system: syncs must be real.
    (ROOT / ".cache").mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT / ".cache")))
        targets = start_all(stack, work)
        for target in targets:
            drive(target, 4, 1.0)
        load = os.getloadavg()[0]
        sync = sync_ms(work)
        for _ in range(options.rounds):
            for target in targets:
                for connections in CONNECTIONS:
                    measure(target, connections, options.seconds)
    results = {target.name: summary(target) for target in targets}
    peers = [target.name for target in targets if target.name.startswith(("rllm", "litellm"))]
    document = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpus": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "load_before": round(load, 2),
            "load_after": round(os.getloadavg()[0], 2),
            "sync_8kb_ms": sync,
        },
        "versions": {name: version(name) for name in ("aiohttp", "orjson", "starlette", "uvicorn", "uvloop")},
        "request": "6 KB chat request; answer of 500 prompt and 50 response token ids with log-probs",
        "seconds_per_run": options.seconds,
        "results": results,
        "ratios_at_16_connections": {
            "requests_per_s": {name: ratio(results, "claw-studio", name, "requests_per_s") for name in peers},
            # What one request costs in CPU time is disturbed least by other work on the machine.
            "cpu_per_request": {name: ratio(results, name, "claw-studio", "cpu_ms_per_request") for name in peers},
        },
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")
    print(f"wrote {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
