"""Collect and Cluster beside a journal target that does not confirm: the bytes that wait for it, and for how long.

The target is real, a folder or a file system of fsspec; what is held back is its confirmation. How many bytes are at
risk is told by the files: what this disk has and the target does not.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import httpx
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from core import service as core_service
from core.config import Settings
from core.service import Service
from core.serving.process import EngineProcess
from studio import kit
from tests.cluster.machines import SCRIPT
from tests.conftest import eventually, scripted_engine

QUESTION = {"model": "scripted-1", "messages": [{"role": "user", "content": "hi"}]}
LATE_S = 5.0
"""From this age on the pages mark the figure."""


class LateStore(MemoryFileSystem):
    """A store that confirms an upload when it is let; its content is only there then."""

    protocol = "late"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    confirms = threading.Event()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        assert self.confirms.wait(120)
        super().pipe_file(path, value, mode=mode, **kwargs)


class Target:
    """A target whose confirmations can be held back."""

    def __init__(self, kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.confirms = LateStore.confirms
        self.confirms.set()
        if kind == "store":
            fsspec.register_implementation("late", LateStore, clobber=True)
            LateStore.store.clear()
            self.address = f"late://{folder.name}/journal"
            return
        self.address = str(folder / "shared")
        Path(self.address).mkdir()
        sync = os.fdatasync

        def late(fd: int) -> None:
            # Only what is written to the shared folder is slow.
            if str(Path(f"/proc/self/fd/{fd}").readlink()).startswith(self.address):
                assert self.confirms.wait(120)
            sync(fd)

        patch.setattr(os, "fdatasync", late)

    def n_bytes(self) -> int:
        """What is in it and confirmed."""
        if "://" in self.address:
            return sum(len(one.getvalue()) for name, one in LateStore.store.items() if ".seg" in name)
        return sum(path.stat().st_size for path in Path(self.address).glob("*.seg"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with scripted_engine(tmp_path_factory.mktemp("engine"), SCRIPT) as running:
        yield running


@pytest.fixture(params=["shared", "store"])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    made = Target(request.param, tmp_path, monkeypatch)
    yield made
    made.confirms.set()


@pytest.fixture
def service(tmp_path: Path, engine: EngineProcess, target: Target) -> Iterator[Service]:
    settings = Settings(
        data_dir=tmp_path / "data", port=0, engine=str(engine.base_url), gateways=0, journal_target=target.address
    )
    yield core_service.open_current(settings)
    target.confirms.set()
    core_service.close_current()


def figure(html: str, label: str) -> tuple[str, str, str]:
    """Tone, value and second line of a figure on a page."""
    value, sub = (rf'<div class="{name}">([^<]*)</div>' for name in "vs")
    (found,) = re.findall(rf'<div class="cs-fig ?(\w*)"[^>]*><div class="l">{label}</div>{value}{sub}', html)
    return found


def seconds_of(text: str) -> float:
    """The age in ``for 1.50 s`` or ``for 120 ms``."""
    number, unit = re.fullmatch(r"for ([\d.]+) (ms|s)", text).groups()  # type: ignore[union-attr]
    return float(number) / (1000 if unit == "ms" else 1)


def test_bytes_at_risk_and_their_age(service: Service, target: Target, open_page: Callable[..., Any]) -> None:
    url = f"{service.base_url}/v1/chat/completions"
    assert httpx.post(url, json=QUESTION, timeout=60).status_code == 200
    own = service.settings.journal_dir
    for key in ("collect", "cluster"):
        assert figure(open_page(key).html, "Not yet copied") == ("", "0 B", "all copied")

    on_disk = sum(path.stat().st_size for path in own.glob("*.seg"))
    assert target.n_bytes() == on_disk
    target.confirms.clear()
    asked = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        call: Future[httpx.Response] = threads.submit(httpx.post, url, json=QUESTION, timeout=120)
        eventually(lambda: service.unshipped()[0])
        at_risk = sum(path.stat().st_size for path in own.glob("*.seg")) - on_disk
        assert at_risk > 1000
        ages = []
        for key in ("collect", "cluster"):
            page = open_page(key)
            assert page.failures == []
            tone, value, age = figure(page.html, "Not yet copied")
            assert value == kit.bytes_text(at_risk)
            assert 0 <= seconds_of(age) <= time.monotonic() - asked
            ages.append(seconds_of(age))
            assert (tone == "bad") == (seconds_of(age) > LATE_S)
        gateway = re.findall(rf">{re.escape(kit.bytes_text(at_risk))}, ([^<]*)<", page.html)
        assert [seconds_of(f"for {age}") for age in gateway] == pytest.approx([ages[1]], abs=1), (
            "also beside the gateway"
        )
        assert ages[0] < ages[1], "it gets older"
        assert not call.done(), "a call whose bytes are at risk is not answered"
        eventually(lambda: service.unshipped()[1] > LATE_S)
        for key in ("collect", "cluster"):
            tone, value, age = figure(open_page(key).html, "Not yet copied")
            assert (tone, value) == ("bad", kit.bytes_text(at_risk))
            assert seconds_of(age) > LATE_S
        target.confirms.set()
        assert call.result(60).status_code == 200
    assert target.n_bytes() == sum(path.stat().st_size for path in own.glob("*.seg"))
    for key in ("collect", "cluster"):
        assert figure(open_page(key).html, "Not yet copied") == ("", "0 B", "all copied")
