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
    """One block to copy.

    Attributes:
        where: where it goes, in words.
        language: for highlighting.
        text: the block.
        file: the file that it is the content of; None: a program or a command.
    """

    where: str
    language: str
    text: str
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Agent:
    """One kind of agent.

    Attributes:
        key: its name in URLs of the studio.
        label: its name on pages.
        dialect: the API that it speaks.
        write: makes the snippets that connect it.
        install: the command that installs it; empty where every system has it.
    """

    key: str
    label: str
    dialect: ServedDialect
    write: Callable[[Session], list[Snippet]]
    install: str = ""


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


def _anthropic_sdk(s: Session) -> list[Snippet]:
    return [
        Snippet(
            "Python, with the anthropic package",
            "python",
            f"""from anthropic import Anthropic

client = Anthropic(
    base_url="{s.root_url}",
    api_key="{s.api_key}",
)
answer = client.messages.create(
    model="{s.model}",
    max_tokens=1024,
    messages=[{{"role": "user", "content": "Say hello."}}],
)
print(answer.content[0].text)""",
        )
    ]


def _openai_agents(s: Session) -> list[Snippet]:
    return [
        Snippet(
            "Python, with the openai-agents package",
            "python",
            f"""from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(
    base_url="{s.v1_url}",
    api_key="{s.api_key}",
)
agent = Agent(
    name="Assistant",
    model=OpenAIChatCompletionsModel("{s.model}", client),
)
print(Runner.run_sync(agent, "Say hello.").final_output)""",
        )
    ]


def _langchain(s: Session) -> list[Snippet]:
    return [
        Snippet(
            "Python, with the langchain and langchain-openai packages",
            "python",
            f"""from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

model = ChatOpenAI(
    base_url="{s.v1_url}",
    api_key="{s.api_key}",
    model="{s.model}",
)
agent = create_agent(model, tools=[])
answer = agent.invoke({{"messages": [{{"role": "user", "content": "Say hello."}}]}})
print(answer["messages"][-1].content)""",
        )
    ]


def _pydantic_ai(s: Session) -> list[Snippet]:
    return [
        Snippet(
            "Python, with the pydantic-ai package",
            "python",
            f"""from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(
    base_url="{s.v1_url}",
    api_key="{s.api_key}",
)
agent = Agent(OpenAIChatModel("{s.model}", provider=provider))
print(agent.run_sync("Say hello.").output)""",
        )
    ]


def _litellm(s: Session) -> list[Snippet]:
    return [
        Snippet(
            "Python, with the litellm package",
            "python",
            f"""import litellm

answer = litellm.completion(
    model="openai/{s.model}",
    api_base="{s.v1_url}",
    api_key="{s.api_key}",
    messages=[{{"role": "user", "content": "Say hello."}}],
)
print(answer.choices[0].message.content)""",
        )
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
            file="~/.codex/config.toml",
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
        Snippet("opencode.json, in the project folder", "json", _pretty(config), file="opencode.json"),
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
        Snippet("openclaw.json", "json", _pretty(config), file="openclaw.json"),
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
        Agent("openai", "OpenAI SDK", CHAT, _openai_sdk, "pip install openai"),
        Agent("anthropic", "Anthropic SDK", MESSAGES, _anthropic_sdk, "pip install anthropic"),
        Agent("openai-agents", "OpenAI Agents", CHAT, _openai_agents, "pip install openai-agents"),
        Agent("langchain", "LangChain", CHAT, _langchain, "pip install langchain langchain-openai"),
        Agent("pydantic-ai", "Pydantic AI", CHAT, _pydantic_ai, 'pip install "pydantic-ai-slim[openai]"'),
        Agent("litellm", "LiteLLM", CHAT, _litellm, "pip install litellm"),
        Agent("claude-code", "Claude Code", MESSAGES, _claude_code, "npm install -g @anthropic-ai/claude-code"),
        Agent("codex", "Codex", RESPONSES, _codex, "npm install -g @openai/codex"),
        Agent("opencode", "opencode", CHAT, _opencode, "npm install -g opencode-ai"),
        Agent("openclaw", "OpenClaw", CHAT, _openclaw, "npm install -g openclaw"),
        Agent("curl", "curl", CHAT, _curl),
    )
}


def model_for(settings_engine: str) -> str:
    """A model name that is routed to the configured engine."""
    if settings_engine.startswith("litellm:"):
        return settings_engine.removeprefix("litellm:")
    return "local" if settings_engine == "local" else "default"
