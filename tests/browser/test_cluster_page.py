"""Browser test of Cluster: a studio with two gateway processes and two other machines, of which one is frozen."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from core.serving.process import EngineProcess
from tests.browser.conftest import Studio, start_studio
from tests.browser.test_new_user_pages import AXE, LAYOUT, RUN, is_ours
from tests.browser.walk import idle
from tests.cluster.machines import SCRIPT, Machine, admin, cluster_settings, free_port, nodes, wait_up
from tests.conftest import eventually, scripted_engine

pytestmark = pytest.mark.timeout(600)
SHOT = {"x": 0, "y": 0, "width": 1440, "height": 700}
QUESTION = {"model": "scripted-1", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with scripted_engine(tmp_path_factory.mktemp("engine"), SCRIPT) as running:
        yield running


@pytest.fixture
def cluster(tmp_path: Path, browser, engine: EngineProcess) -> Iterator[tuple[Studio, list[Machine]]]:
    """A studio with its pages and two gateways, and two machines with one each."""
    hub_port, node_port = free_port(), free_port()
    env = cluster_settings(hub_port, node_port, CLAW_STUDIO_ENGINE=str(engine.base_url))
    env["CLAW_STUDIO_GATEWAYS"] = "2"
    # The pages need no key here; agents on other machines would.
    env |= {"CLAW_STUDIO_NODE_HOST": "local"}
    del env["CLAW_STUDIO_API_KEY"]
    studio = start_studio(tmp_path, env=env)
    machines = [Machine("127.0.0.2", tmp_path, hub_port, node_port)]
    yield studio, machines
    for machine in machines:
        machine.signal(signal.SIGCONT)
        machine.stop()
    studio.stop()


def test_the_page_shows_machines_and_gateways_as_they_are(cluster, watch):
    studio, (machine,) = cluster
    with admin(studio.gateway_url) as http:
        wait_up(http, machine.node)
        answer = http.post("/v1/chat/completions", json=QUESTION)
        assert answer.status_code == 200
        page = watch(f"{studio.url}/cluster").page
        figure = {
            label: page.locator(".cs-fig", has=page.locator(".l", has_text=re.compile(f"^{label}$")))
            for label in ("Machines", "Gateways", "Restarts", "Without the last change")
        }
        expect(figure["Machines"].locator(".v")).to_have_text("2")
        expect(figure["Gateways"].locator(".s")).to_have_text("3 up")
        row = page.locator("tr", has_text="127.0.0.2")
        shown_state = row.locator("td").nth(2)
        expect(shown_state).to_have_text("up")
        pids = [str(one["pid"]) for one in nodes(http)[machine.node]["gateways"]]
        pids += [str(one["pid"]) for one in http.get("/api/v1/cluster").json()["gateways"]]
        assert len(pids) == 3
        for pid in pids:
            expect(page.locator("tr", has_text=pid)).to_have_count(1)
        expect(page.locator("tr", has_text=f"node.{machine.node}.g1")).to_contain_text("in time")
        look(page)
        if folder := os.environ.get("CLAW_CLUSTER_SCREENSHOTS"):
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                page.wait_for_timeout(1500)
                page.screenshot(path=f"{folder}/cluster-{scheme}.png", clip=SHOT)
        # Killed, a gateway is started again, and counted.
        os.kill(int(pids[0]), signal.SIGKILL)
        expect(figure["Restarts"].locator(".v")).to_have_text("1")
        eventually(lambda: [one["state"] for one in nodes(http)[machine.node]["gateways"]] == ["up"])
        expect(figure["Gateways"].locator(".s")).to_have_text("3 up")
        machine.signal(signal.SIGSTOP)
        expect(shown_state).to_have_text("unreachable")
        expect(figure["Machines"].locator(".s")).to_have_text("1 take calls")
        revoked = http.post("/api/v1/policy", json={"version": 3, "event": "sync_finished"}).json()
        assert revoked["unreachable"] == [machine.node]
        late = figure["Without the last change"]
        expect(late.locator(".s")).to_have_text(machine.node)
        machine.signal(signal.SIGCONT)
        expect(late.locator(".v")).to_have_text("0")
        expect(shown_state).to_have_text("up")


def test_one_machine_is_told_how_to_start_a_cluster(studio, watch):
    page = watch(f"{studio.url}/cluster").page
    expect(page.get_by_text("claw-studio cluster up --data")).to_be_visible()
    expect(page.locator("tr", has_text="this machine")).to_have_count(1)


def look(page) -> None:
    """axe-core in light and dark, and the layout at two widths."""
    idle(page)
    problems = []
    if AXE.exists():
        page.evaluate(f"{AXE.read_text(encoding='utf-8')};0")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(500)
            problems += [one for one in page.evaluate(RUN) if is_ours(one)]
    for width in (1280, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(400)
        problems += page.evaluate(LAYOUT)
    assert not problems, json.dumps(problems, indent=1)
