"""Snippets that configure an agent to use the gateway, in the format that each agent documents.

Every agent authenticates with its session key, which identifies the trajectory: no header is needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from core.gateway.served_dialects import CHAT, MESSAGES, RESPONSES, ServedDialect

PROVIDER = "claw-studio"


@dataclass(frozen=True, slots=True)
class Session:
    """The values of a snippet: the gateway's root URL, the session key, the model's name."""

    root_url: str
    api_key: str
    model: str

    @property
    def v1_url(self) -> str:
        """The OpenAI-style base URL."""
        return f"{self.root_url}/v1"


@dataclass(frozen=True, slots=True)
class Snippet:
    """One block to copy: where it goes, its language for highlighting, its text."""

    where: str
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Agent:
    """One kind of agent: its name, its API dialect, and the snippets that connect it."""

    key: str
    label: str
    dialect: ServedDialect
    write: Callable[[Session], list[Snippet]]


def _openai_sdk(s: Session) -> list[Snippet]:
    return [
        Snippet(
            "Python, with the openai package",
            "python",
            f"""from openai import OpenAI

client = OpenAI(
    base_url="{s.v1_url}",
    api_key="{s.api_key}",
)
answer = client.chat.completions.create(
    model="{s.model}",
    messages=[{{"role": "user", "content": "Say hello."}}],
)
print(answer.choices[0].message.content)""",
        ),
        Snippet(
            "Or by environment variables, without changes to the program",
            "bash",
            f'export OPENAI_BASE_URL="{s.v1_url}"\nexport OPENAI_API_KEY="{s.api_key}"',
        ),
    ]


def _curl(s: Session) -> list[Snippet]:
    body = {"model": s.model, "messages": [{"role": "user", "content": "Say hello."}]}
    return [
        Snippet(
            "Any shell",
            "bash",
            f"curl {s.v1_url}/chat/completions \\\n"
            f'  -H "Authorization: Bearer {s.api_key}" \\\n'
            '  -H "Content-Type: application/json" \\\n'
            f"  -d '{json.dumps(body)}'",
        )
    ]


def _claude_code(s: Session) -> list[Snippet]:
    return [
        Snippet(
            "In the shell that starts Claude Code",
            "bash",
            f'export ANTHROPIC_BASE_URL="{s.root_url}"\n'
            f'export ANTHROPIC_AUTH_TOKEN="{s.api_key}"\n'
            f'export ANTHROPIC_MODEL="{s.model}"\n'
            "unset ANTHROPIC_API_KEY\n"
            'claude -p "List the files here." --allowedTools Bash',
        )
    ]


def _codex(s: Session) -> list[Snippet]:
    return [
        Snippet(
            "~/.codex/config.toml",
            "toml",
            f'model = "{s.model}"\nmodel_provider = "{PROVIDER}"\n\n'
            f'[model_providers.{PROVIDER}]\nname = "Claw Studio"\nbase_url = "{s.v1_url}"\n'
            'env_key = "CLAW_SESSION_KEY"\nwire_api = "responses"',
        ),
        Snippet(
            "Then",
            "bash",
            f'export CLAW_SESSION_KEY="{s.api_key}"\ncodex exec --skip-git-repo-check "List the files here."',
        ),
    ]


def _opencode(s: Session) -> list[Snippet]:
    config = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"{PROVIDER}/{s.model}",
        "provider": {
            PROVIDER: {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Claw Studio",
                "options": {"baseURL": s.v1_url, "apiKey": s.api_key},
                "models": {s.model: {"name": s.model}},
            }
        },
    }
    return [
        Snippet("opencode.json, in the project folder", "json", _pretty(config)),
        Snippet("Then", "bash", 'opencode run "List the files here."'),
    ]


def _openclaw(s: Session) -> list[Snippet]:
    config = {
        "models": {
            "providers": {
                PROVIDER: {
                    "baseUrl": s.v1_url,
                    "apiKey": s.api_key,
                    "api": "openai-completions",
                    "models": [{"id": s.model, "name": s.model}],
                }
            }
        },
        "agents": {"defaults": {"model": {"primary": f"{PROVIDER}/{s.model}"}}},
    }
    return [
        Snippet("openclaw.json", "json", _pretty(config)),
        Snippet(
            "Then",
            "bash",
            'export OPENCLAW_CONFIG_PATH="$PWD/openclaw.json"\n'
            'openclaw agent --local --session-id demo --message "List the files here." --json',
        ),
    ]


def _pretty(config: dict[str, Any]) -> str:
    return json.dumps(config, indent=2)


AGENTS: dict[str, Agent] = {
    agent.key: agent
    for agent in (
        Agent("openai", "OpenAI SDK", CHAT, _openai_sdk),
        Agent("curl", "curl", CHAT, _curl),
        Agent("claude-code", "Claude Code", MESSAGES, _claude_code),
        Agent("codex", "Codex", RESPONSES, _codex),
        Agent("opencode", "opencode", CHAT, _opencode),
        Agent("openclaw", "OpenClaw", CHAT, _openclaw),
    )
}


def model_for(settings_engine: str) -> str:
    """A model name that is routed to the configured engine."""
    if settings_engine.startswith("litellm:"):
        return settings_engine.removeprefix("litellm:")
    return "local" if settings_engine == "local" else "default"
