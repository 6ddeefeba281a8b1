"""The built wheel: what it holds, on a bare Python, in a trainer's environment, and installed whole in an empty one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.browser.conftest import Studio, chromium_path, free_port
from tests.conftest import ServeProcess, eventually
from tests.left_out import missing
from tests.trainers.running import verl_python

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / ".cache" / "package" / "bin" / "claw-studio"
NO_ENGINE = "http://127.0.0.1:9/v1"
MOVED = {"pages": "studio/pages", "demo_data": "core/demo_data", "examples": "core/examples"}
USES_CLIENT = """
import sys
from core.client import StudioClient
from core.trainer import Trainer
with StudioClient(sys.argv[1]) as studio, studio.rollout(prompt_uid="bare") as rollout:
    rollout.step(prompt_ids=[1, 2], response_ids=[3], response_logprobs=[-0.1], reward=None)
    rollout.reward = 1.0
with Trainer(sys.argv[1], consumer="bare", recipe={"algorithm": "sft", "options": {"min_reward": None}}) as trainer:
    batch = trainer.fetch(wait_s=30)
    print([int(token) for token in batch.steps[0]["response_ids"]])
    batch.ack(update=1)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what git tracks, built in a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder / "dist", folder / "source"]
    subprocess.run(command, check=True, capture_output=True)
    return next((folder / "dist").glob("claw_studio-*.whl"))


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``pip install --no-deps`` puts beside a Python's packages."""
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_it_holds_every_tracked_file_of_the_program(wheel: Path) -> None:
    command = ["git", "ls-files", "core", "studio", *MOVED]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    expected = {
        name.replace(folder, MOVED[folder], 1) if (folder := name.split("/")[0]) in MOVED else name for name in tracked
    }
    with zipfile.ZipFile(wheel) as archive:
        assert expected - set(archive.namelist()) == set()


def run_client(python: Path | str, packages: Path, service: ServeProcess, *options: str) -> str:
    """What the clients' program prints in another Python that has the wheel and none of its dependencies."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(packages), "HOME": str(packages)}
    command = [str(python), *options, "-c", USES_CLIENT, service.base_url]
    return subprocess.run(command, env=environment, cwd=packages, capture_output=True, text=True, check=True).stdout


def test_clients_work_on_a_bare_python(unpacked: Path, serve: Callable[..., ServeProcess]) -> None:
    # Without site no package of this environment is found.
    assert run_client(sys.executable, unpacked, serve(NO_ENGINE), "-S") == "[3]\n"


@pytest.mark.trainers
def test_clients_work_in_an_environment_with_other_versions(unpacked: Path, serve: Callable[..., ServeProcess]) -> None:
    assert run_client(verl_python(), unpacked, serve(NO_ENGINE)) == "[3]\n"


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Iterator[Studio]:
    """``claw-studio`` without a command, started in an empty folder; docker/install made the environment."""
    if not INSTALLED.exists():
        missing("the wheel's environment is not there: .ci/run makes .cache/package with docker/install")
    anew = [INSTALLED.with_name("python"), "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", wheel]
    subprocess.run(anew, check=True, capture_output=True)
    port, gateway_port = free_port(), free_port()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "CLAW_STUDIO_PORT": str(gateway_port),
        "STREAMLIT_SERVER_PORT": str(port),
        "HOME": str(tmp_path),
    }
    log_path = tmp_path / "log"
    with log_path.open("wb") as log:
        process = subprocess.Popen([INSTALLED], cwd=tmp_path, env=environment, stdout=log, stderr=log)
    studio = Studio(
        f"http://127.0.0.1:{port}", f"http://127.0.0.1:{gateway_port}", tmp_path / ".data", log_path, process
    )
    try:
        for url in (f"{studio.url}/_stcore/health", f"{studio.gateway_url}/healthz"):
            eventually(lambda url=url: answers(url), timeout_s=120)
        yield studio
    finally:
        process.terminate()
        process.wait(60)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.TransportError:
        return False


@pytest.mark.browser
@pytest.mark.beyond
def test_an_installed_studio_opens_and_shows_its_demo(installed: Studio) -> None:
    """From any folder, in an environment that has nothing else: pages, styles, demo data and the gateway are there."""
    from playwright.sync_api import expect, sync_playwright

    path = chromium_path()
    if path is None:
        missing("no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.goto(installed.url)
        page.get_by_role("button", name="Load demo data").click()
        expect(page.locator(".cs-head")).to_be_visible(timeout=120_000)
        eventually(
            lambda: httpx.get(f"{installed.gateway_url}/api/v1/stats", timeout=120).json()["n_steps"] > 100,
            timeout_s=120,
        )
        for name in ("inspect", "curate", "optimise", "batch", "settings"):
            page.goto(f"{installed.url}/{name}")
            page.wait_for_selector(".cs-head")
            assert page.locator("[data-testid=stException]").count() == 0, name
        browser.close()
    request = {"model": "claw-local", "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]}
    answer = httpx.post(f"{installed.gateway_url}/v1/chat/completions", json=request, timeout=120)
    assert answer.status_code == 200
