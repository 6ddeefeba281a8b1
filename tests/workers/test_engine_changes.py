"""Engines that are added, paused, tested and removed at run time: in every gateway process, and after a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from core.config import Settings
from core.errors import Conflict, InvalidInput, NotFound
from core.service import Service
from core.serving.process import EngineProcess
from tests.conftest import eventually, scripted_engine

N_CALLS = 12
"""Calls over connections of their own, so that neither of two processes can have been left out."""


def engine_that_says(folder: Path, text: str) -> EngineProcess:
    folder.mkdir()
    return scripted_engine(folder, {"default": {"content": text}})


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses of two engines, which answer "first" and "second"."""
    folder = tmp_path_factory.mktemp("engines")
    processes = [engine_that_says(folder / text, text) for text in ("first", "second")]
    addresses = [str(process.wait_ready().base_url) for process in processes]
    yield addresses[0], addresses[1]
    for process in processes:
        process.stop()


def opened(folder: Path, engine: str, **more: Any) -> Service:
    return Service.open(Settings(data_dir=folder / "data", port=0, engine=engine, gateways=2, **more))


def answers(service: Service, model: str = "any") -> set[str]:
    """What a real client gets; a refusal is its status."""
    texts = set()
    for _ in range(N_CALLS):
        with openai.OpenAI(base_url=f"{service.base_url}/v1", api_key="none", max_retries=0) as client:
            try:
                reply = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])
            except openai.APIStatusError as error:
                assert error.response.headers["retry-after"] == "10" and "paused" in str(error)
                texts.add(str(error.status_code))
            else:
                texts.add(str(reply.choices[0].message.content))
    return texts


def test_a_change_holds_in_every_process_at_once_and_after_a_restart(engines: tuple[str, str], tmp_path: Path) -> None:
    service = opened(tmp_path, engines[0])
    try:
        changes = service.engine_changes
        assert answers(service, "other-1") == {"first"}
        changes.add({"name": "second", "base_url": engines[1], "models": ["other-*"]})
        assert answers(service, "other-1") == {"second"} and answers(service) == {"first"}
        with pytest.raises(Conflict, match="'second'"):
            changes.add({"name": "second", "base_url": engines[1]})

        changes.pause("engine")
        assert answers(service) == {"503"} and answers(service, "other-1") == {"second"}
        assert {one["name"]: one["paused"] for one in service.engines.status()} == {"engine": True, "second": False}
        n_captured = service.pool.steps.count
        eventually(lambda: n_captured() == 4 * N_CALLS)
    finally:
        service.close()
    service = opened(tmp_path, engines[0])
    try:
        changes = service.engine_changes
        assert answers(service) == {"503"} and answers(service, "other-1") == {"second"}
        changes.pause("engine", False)
        assert answers(service) == {"first"}
        changes.remove("second")
        assert answers(service, "other-1") == {"first"}
        with pytest.raises(NotFound):
            changes.remove("engine")
        assert json.loads((tmp_path / "data" / "engines.json").read_text()) == {"added": [], "paused": []}
    finally:
        service.close()


def test_the_calls_of_a_paused_replica_go_to_the_others(engines: tuple[str, str], tmp_path: Path) -> None:
    service = opened(tmp_path, ",".join(engines))
    try:
        service.engine_changes.pause("engine")
        assert answers(service) == {"second"}
        service.engine_changes.pause("engine-2")
        assert answers(service) == {"503"}
    finally:
        service.close()


def test_wrong_engines_are_named_and_a_test_says_what_an_engine_returns(
    engines: tuple[str, str], tmp_path: Path
) -> None:
    service = Service.open(Settings(data_dir=tmp_path, port=0, engine=engines[0], gateways=0))
    try:
        changes = service.engine_changes
        for fields, field in (
            ({"name": "", "base_url": engines[1]}, "name"),
            ({"name": "a", "base_url": "127.0.0.1:1"}, "base_url"),
            ({"name": "a", "base_url": engines[1], "models": []}, "models"),
            ({"name": "a", "base_url": engines[1], "api_key_env": "NO_SUCH_VARIABLE"}, "api_key_env"),
        ):
            with pytest.raises(InvalidInput) as raised:
                changes.add(fields)
            assert raised.value.field == field and changes.added == ()
        with pytest.raises(NotFound):
            changes.pause("nobody")
        works = changes.test("engine")
        assert works.ok and works.exact and "token ids and log-probs" in works.message
        changes.add({"name": "dead", "base_url": "http://127.0.0.1:9/v1", "models": ["dead"]})
        dead = changes.test("dead")
        assert not dead.ok and "dead" in dead.message
        with pytest.raises(NotFound):
            changes.test("nobody")
        # A test is not a call of an agent.
        assert service.engines.status()[0]["n_calls"] == 0
    finally:
        service.close()


def test_a_stored_engine_that_the_settings_name_too_is_left_out(engines: tuple[str, str], tmp_path: Path) -> None:
    stored = {"added": [{"name": "engine", "base_url": engines[1]}, {"name": 7}], "paused": []}
    (tmp_path / "engines.json").write_text(json.dumps(stored))
    service = Service.open(Settings(data_dir=tmp_path, port=0, engine=engines[0], gateways=0))
    try:
        assert service.engine_changes.added == ()
        assert [one["base_url"] for one in service.engines.status()] == [engines[0]]
    finally:
        service.close()
