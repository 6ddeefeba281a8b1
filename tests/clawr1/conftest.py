"""A service whose scripted policy solves one GSM8K question, first by the tool, then in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from core.serving.process import EngineProcess
from tests.conftest import ServeProcess

QUESTION = "Natalia sold clips to 48 friends in April, and half as many in May. How many? Put the answer after ####."
ANSWER = "Half of 48 is 24 and 48 + 24 is 72.\n#### 72"
CALL = {"name": "check_answer", "arguments": {"answer": "72"}}
SCRIPT: dict[str, Any] = {
    "model": "scripted-1",
    "rules": [{"when": {"turn": 0, "has_tools": True}, "reply": {"content": "", "tool_calls": [CALL]}}],
    "default": {"reply": {"content": ANSWER}},
}
FIELDS = {
    "raw_prompt": [{"role": "user", "content": QUESTION}],
    "reward_model": {"ground_truth": "72", "style": "rule"},
    "data_source": "openai/gsm8k",
    "extra_info": {"index": 0},
}
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0, "logprobs": True}


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """The service; tests name their own prompt groups."""
    folder = tmp_path_factory.mktemp("clawr1")
    (folder / "script.json").write_text(json.dumps(SCRIPT))
    with EngineProcess.start("scripted", args=["--script", folder / "script.json"]) as engine:
        assert engine.base_url
        process = ServeProcess(folder / "data", engine.base_url)
        yield process
        assert process.stop() == 0
