"""When LiteLLM is imported: in the background where an engine is made of it, at the first call elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ServeProcess, eventually
from tests.left_out import only_in_ci
from tests.processes import gateway_workers

OWN = {"authorization": "Bearer agents-own-provider-key"}
SAID = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}


def has_litellm(studio: ServeProcess) -> bool:
    """By a library that only LiteLLM brings into a process that takes calls."""
    pid = studio.process.pid
    return all("tiktoken" in Path(f"/proc/{one}/maps").read_text() for one in gateway_workers(pid) or [pid])


@pytest.fixture
def hosted(upstream):
    """The environment of a provider whose API is the upstream."""
    return {"HOSTED_VLLM_API_BASE": upstream.base_url, "HOSTED_VLLM_API_KEY": "environment-key-0123"}


def test_a_configured_provider_is_ready_before_anybody_calls(serve, upstream, hosted):
    studio = serve("litellm:hosted_vllm/policy", env=hosted)
    eventually(lambda: has_litellm(studio))
    assert studio.http.post("/v1/chat/completions", json=SAID).status_code == 200
    assert len(upstream.seen) == 1
    assert studio.stop() == 0


def test_calls_that_come_meanwhile_wait_and_are_answered(serve, upstream, hosted):
    studio = serve("litellm:hosted_vllm/policy", env=hosted)
    assert studio.http.post("/v1/chat/completions", json=SAID).status_code == 200
    assert studio.http.post("/v1/chat/completions", json=SAID | {"stream": True}).text.endswith("data: [DONE]\n\n")
    assert len(upstream.seen) == 2


@only_in_ci("takes three seconds")
def test_keys_alone_import_nothing(serve, upstream, hosted):
    studio = serve(upstream.base_url, env=hosted)
    assert studio.http.post("/v1/chat/completions", json=SAID).status_code == 200
    assert not has_litellm(studio)
    # A name that means a provider does.
    answer = studio.http.post("/v1/chat/completions", json={**SAID, "model": "hosted_vllm/elsewhere"}, headers=OWN)
    assert answer.status_code == 200
    assert has_litellm(studio)


def test_who_stops_at_once_does_not_wait_for_it(serve, hosted):
    assert serve("litellm:hosted_vllm/policy", env=hosted).stop() == 0


IMPORTING = """
import asyncio, gc, sys, time
from core.gateway.providers.litellm_import import LiteLLM

async def main():
    shared, late = LiteLLM(), []
    async def beat():
        while True:
            at = time.perf_counter()
            await asyncio.sleep(0.001)
            late.append(time.perf_counter() - at)
    beating = asyncio.create_task(beat())
    impatient = asyncio.create_task(shared.get())
    await asyncio.sleep(0.01)
    impatient.cancel()
    found = await asyncio.gather(*(shared.get() for _ in range(100)))
    beating.cancel()
    assert all(module is sys.modules["litellm"] for module in found)
    assert await shared.get() is found[0]
    # The loop went on: many beats, and afterwards garbage is collected as before.
    assert len(late) > 20, len(late)
    assert gc.isenabled() and sys.getswitchinterval() > 0.004
    assert found[0].drop_params and not found[0].telemetry

asyncio.run(main())
"""


def test_a_hundred_calls_share_one_import_and_the_loop_goes_on():
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


BROKEN = """
import asyncio, sys
from core.errors import EngineError
from core.gateway.providers.litellm_import import LiteLLM

async def main():
    shared = LiteLLM()
    for word in ("first", "second"):
        (folder / "litellm.py").write_text(f"raise RuntimeError({word!r})")
        try:
            await shared.get()
        except EngineError as error:
            assert word in error.message, error.message
        else:
            raise AssertionError
    (folder / "litellm.py").unlink()
    assert (await shared.get()).completion

import importlib, pathlib
folder = pathlib.Path(sys.argv[1])
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
importlib.invalidate_caches()
asyncio.run(main())
"""


@only_in_ci("takes two seconds")
def test_an_import_that_fails_is_said_and_tried_again(tmp_path):
    done = subprocess.run([sys.executable, "-c", BROKEN, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
