"""Fixtures: a running service in this process, empty or with known steps, and pages run by Streamlit's test runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from streamlit.components.v2.component_manager import BidiComponentManager
from streamlit.testing.v1 import AppTest

import studio
from core import service as core_service
from core.config import Settings
from core.types import Annotation, AnnotationKind, Step
from studio import login

MAIN = Path(studio.__file__).parent / "main.py"
DEAD_ENGINE = "http://127.0.0.1:9/v1"
NOW = 1_790_000_000.0


def known_steps() -> list[Step]:
    """Two prompt groups of three trajectories of two steps: 12 steps, ids that say where they come from."""
    steps = []
    for group in range(2):
        for rollout in range(3):
            trajectory, prompt = f"t{group}{rollout}", [7, 8, group]
            for index in range(2):
                answer = [20 + rollout, 30 + index]
                steps.append(
                    Step(
                        step_uid=f"{trajectory}-s{index}",
                        trajectory_uid=trajectory,
                        prompt_uid=f"p{group}",
                        step_index=index,
                        created_at=NOW + 10 * group + rollout + index / 10,
                        channel="val" if group else "train",
                        agent="tester",
                        model="known-1",
                        identity_source="path",
                        transition="extends" if index else None,
                        token_source="engine",
                        prompt_ids=list(prompt),
                        response_ids=answer,
                        response_logprobs=[-0.5, -0.25],
                        messages=[{"role": "user", "content": f"task {group}"}],
                        response_message={"role": "assistant", "content": f"answer {index} of {trajectory}"},
                        finish_reason="stop",
                        latency_s=0.25,
                        parent_step_uid=f"{trajectory}-s{index - 1}" if index else None,
                        n_shared_tokens=3 if index else 0,
                    )
                )
                prompt += answer
    return steps


@pytest.fixture
def service(tmp_path: Path) -> Iterator[core_service.Service]:
    """An empty, running service; its engine is an address where nobody answers."""
    opened = core_service.open_current(Settings(data_dir=tmp_path / "data", port=0, engine=DEAD_ENGINE))
    yield opened
    core_service.close_current()


@pytest.fixture
def filled(service: core_service.Service) -> core_service.Service:
    """The same with ``known_steps``; the trajectories of the first group are scored 0, 0.5 and 1."""
    service.pool.steps.append(known_steps())
    service.pool.labels.annotate(
        [
            Annotation(AnnotationKind.REWARD, reward, "tester", "test", NOW + 100, trajectory_uid=f"t0{rollout}")
            for rollout, reward in enumerate((0.0, 0.5, 1.0))
        ]
    )
    return service


class Page:
    """One page after a run: what it shows, and what failed."""

    def __init__(self, app: AppTest) -> None:
        self.app = app

    @property
    def html(self) -> str:
        """All HTML that the page wrote, in order."""
        return "\n".join(element.proto.body for element in self.app.get("html"))

    @property
    def failures(self) -> list[str]:
        """Exceptions and red call-outs; a healthy page has none."""
        raised = [str(error.value) for error in self.app.exception]
        return raised + [body for body in self.html.split("\n") if "cs-callout bad" in body]


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Page]:
    """Run a page of the app, with URL parameters.

    The test runner has neither a server's address nor a browser's: the visitor is this machine's user.
    """
    monkeypatch.setattr(login, "is_exposed", lambda host, address: False)

    def run(key: str, **params: str) -> Page:
        app = AppTest.from_file(str(MAIN), default_timeout=60)
        # Else it reads the metadata of every installed package to find components of others; the studio has none.
        app._bidi_component_manager = BidiComponentManager()
        if key != "overview":
            # Before a first run a page is known by its file's name, which is ours, so the overview need not be drawn.
            app.switch_page(f"../pages/{key}.py")
        for name, value in params.items():
            app.query_params[name] = value
        return Page(app.run())

    return run
