"""Jobs that ``ray job submit`` hands to a real Ray cluster: the commands that guide and RayJob give."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.export import export
from core.owner import running_service
from core.pool import Pool
from core.serving.process import EngineProcess
from core.types import View
from tests.batch.keeping_all import SFT_ALL
from tests.cluster.installed import ROOT, ray_python_with_jobs
from tests.cluster.machines import KEY, SCRIPT, admin, free_port, lost, wait_up
from tests.cluster.ray_cluster import ADDRESS, NODE, RayCluster
from tests.conftest import eventually, scripted_engine
from tests.export.uneven_pool import T0, fill

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(600)]


class Jobs:
    """A cluster that takes jobs; ``claw-studio`` is a command on its nodes."""

    def __init__(self, folder: Path, engine: str) -> None:
        python, port = ray_python_with_jobs(), free_port()
        command = folder / "bin" / "claw-studio"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {python} -m core.cli "$@"\n')
        command.chmod(0o755)
        self.node_port = free_port()
        settings = {
            "CLAW_STUDIO_GATEWAYS": "1",
            "CLAW_STUDIO_API_KEY": KEY,
            "CLAW_STUDIO_PORT": "0",
            "CLAW_STUDIO_ENGINE": engine,
            "CLAW_STUDIO_NODE_HOST": "node",
            "CLAW_STUDIO_NODE_PORT": str(self.node_port),
        }
        path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
        self.cluster = RayCluster(python, n_cpus=1, dashboard_port=port, PATH=path, **settings)
        self.address = f"http://127.0.0.1:{port}"

    def submit(self, entrypoint: str) -> tuple[str, str]:
        """``ray job submit``; the job's state and what it printed."""
        words = shlex.split(entrypoint)
        submit = [self.cluster.python.with_name("ray"), "job", "submit", "--address", self.address, "--", *words]
        environment = {**os.environ, "RAY_COLOR_LOGGING": "0"}

        def submitted() -> subprocess.CompletedProcess[str] | None:
            done = subprocess.run(submit, capture_output=True, text=True, timeout=280, check=False, env=environment)
            # Ray gives the head's agent ten seconds to start.
            return None if "No available agent" in done.stderr else done

        done = eventually(submitted)
        (uid,) = set(re.findall(r"Job '(\w+)' submitted", done.stdout)) or {""}
        assert uid, done.stdout + done.stderr
        job = httpx.get(f"{self.address}/api/jobs/{uid}", timeout=60).json()
        assert job["entrypoint"] == shlex.join(words)
        assert (done.returncode == 0) == (job["status"] == "SUCCEEDED")
        return job["status"], httpx.get(f"{self.address}/api/jobs/{uid}/logs", timeout=60).json()["logs"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with scripted_engine(tmp_path_factory.mktemp("engine"), SCRIPT) as running:
        yield running


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory, engine: EngineProcess) -> Iterator[Jobs]:
    made = Jobs(tmp_path_factory.mktemp("jobs"), str(engine.base_url))
    yield made
    made.cluster.close()


@dataclass
class Written:
    """A dataset of steps, and the SHA-256 of its plan's export by the studio."""

    folder: Path
    sha256: str


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    folder = tmp_path_factory.mktemp("written")
    pool = Pool.open(folder / "pool.duckdb", memory="512MB", threads=1, clock=lambda: T0 + 1000)
    made = plan(fill(pool), View(), parse_recipe(SFT_ALL))
    dataset = export(made, pool, "steps_dataset", folder, options={"part_tokens": "1"}).path
    yield Written(
        dataset, hashlib.sha256(export(made, pool, "trl_sft", folder / "studio").path.read_bytes()).hexdigest()
    )
    pool.close()


def documented(page: str, beginning: str) -> str:
    """The command after ``--`` of a page's ``ray job submit``."""
    text = (ROOT / "docs" / page).read_text()
    (command,) = re.findall(rf"`ray job submit --address http://head:8265 -- ({beginning} [^`]*)`", text)
    return str(command)


def test_an_export_gives_the_bytes_of_one_machine(jobs: Jobs, written: Written, tmp_path: Path) -> None:
    command = documented("datasets.md", "claw-studio export-dataset")
    command = command.replace("FOLDER", str(written.folder)).replace("OUT", str(tmp_path / "out"))
    state, logs = jobs.submit(command)
    assert state == "SUCCEEDED", logs
    (path,) = [json.loads(line)["path"] for line in logs.splitlines() if line.startswith('{"path"')]
    assert Path(path).parent == tmp_path / "out"
    assert hashlib.sha256(Path(path).read_bytes()).hexdigest() == written.sha256


def test_a_refused_export_is_a_failed_job(jobs: Jobs, written: Written, tmp_path: Path) -> None:
    """SFT assigns no advantages."""
    state, logs = jobs.submit(f"claw-studio export-dataset {written.folder} trl_grpo --out {tmp_path} --ray auto")
    assert state == "FAILED"
    assert "recipe.algorithm" in logs
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data folder; a test that fails does not leave its studio running."""
    yield tmp_path / "data"
    owner = running_service(tmp_path / "data")
    if owner is not None:
        os.kill(owner["pid"], signal.SIGKILL)


def test_the_studio_outlives_the_job_that_starts_it(jobs: Jobs, data: Path, tmp_path: Path) -> None:
    """The entrypoint of ``docker/rayjob.yaml``, with folders and a port of this machine."""
    entrypoint = yaml.safe_load((ROOT / "docker" / "rayjob.yaml").read_text())["spec"]["entrypoint"]
    assert documented("cluster.md", "claw-studio cluster up") in entrypoint.replace("/data ", "/data/studio ")
    here = entrypoint.replace("/data", str(data)).replace("/tmp/claw-studio", str(tmp_path / "{node}"))
    state, logs = jobs.submit(f"{here} --no-pages --hub-port {free_port()}")
    assert state == "SUCCEEDED", logs
    (up,) = [json.loads(line) for line in logs.splitlines() if line.startswith('{"ready"')]
    with admin(up["base_url"]) as http:
        wait_up(http, NODE)
        body: dict[str, Any] = {"model": "scripted-1", "messages": [{"role": "user", "content": "hi"}]}
        with admin(f"http://{ADDRESS}:{jobs.node_port}") as node:
            answer = node.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert lost(http, {answer.headers["x-step-uid"]: 0.0}) == set()
    state, logs = jobs.submit("claw-studio cluster down")
    assert state == "SUCCEEDED" and '{"ended": true}' in logs
    assert not Path(f"/proc/{up['pid']}").exists()
