"""Tests of connection snippets: they parse in their own language and contain address, key and model."""

from __future__ import annotations

import ast
import json
import shlex
import tomllib

import pytest

from studio.widgets.agents import snippets

SESSION = snippets.Session("http://127.0.0.1:8123", "cs-0123", "model-7")


def blocks(key: str) -> dict[str, str]:
    return {snippet.language: snippet.text for snippet in snippets.AGENTS[key].write(SESSION)}


@pytest.mark.parametrize("key", list(snippets.AGENTS))
def test_address_and_key_are_there(key):
    text = "\n".join(blocks(key).values())
    assert SESSION.root_url in text
    assert SESSION.api_key in text


def test_openai_sdk_accepts_the_lines():
    tree = ast.parse(blocks("openai")["python"])
    call = next(node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "OpenAI")
    arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}

    from openai import OpenAI

    client = OpenAI(**arguments)
    assert str(client.base_url).rstrip("/") == SESSION.v1_url


def test_curl_line_is_one_command():
    words = shlex.split(blocks("curl")["bash"].replace("\\\n", " "))
    assert words[:2] == ["curl", f"{SESSION.v1_url}/chat/completions"]
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == SESSION.model
    assert f"Authorization: Bearer {SESSION.api_key}" in words


def test_codex_config_is_toml():
    config = tomllib.loads(blocks("codex")["toml"])
    provider = config["model_providers"][config["model_provider"]]
    assert provider["base_url"] == SESSION.v1_url
    assert provider["wire_api"] == "responses"
    assert f'export {provider["env_key"]}="{SESSION.api_key}"' in blocks("codex")["bash"]


def test_opencode_config_names_its_model():
    config = json.loads(blocks("opencode")["json"])
    provider, model = config["model"].split("/")
    assert model in config["provider"][provider]["models"]
    assert config["provider"][provider]["options"] == {"baseURL": SESSION.v1_url, "apiKey": SESSION.api_key}


def test_openclaw_config_names_its_model():
    config = json.loads(blocks("openclaw")["json"])
    provider, model = config["agents"]["defaults"]["model"]["primary"].split("/")
    assert config["models"]["providers"][provider]["models"][0]["id"] == model


def test_claude_code_takes_the_root_without_v1():
    lines = blocks("claude-code")["bash"]
    assert f'ANTHROPIC_BASE_URL="{SESSION.root_url}"' in lines
    assert "/v1" not in lines
