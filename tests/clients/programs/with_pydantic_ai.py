"""Pydantic AI: ``DIALECT BASE_URL KEY TASK`` -> what it saw, as JSON."""

import json
import sys

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

dialect, base_url, key, task = sys.argv[1:]
if dialect == "messages":
    client = AsyncAnthropic(base_url=base_url, api_key=key, max_retries=0)
    model = AnthropicModel("policy", provider=AnthropicProvider(anthropic_client=client))
else:
    provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=f"{base_url}/v1", api_key=key, max_retries=0))
    model = (OpenAIResponsesModel if dialect == "responses" else OpenAIChatModel)("policy", provider=provider)
agent = Agent(model, instructions="Count well.")
heard = []


@agent.tool_plain
def note(text: str) -> str:
    """Write something down."""
    heard.append(["note", {"text": text}])
    return f"noted: {text}"


@agent.tool_plain
def add(a: int, b: int) -> int:
    """Add two numbers."""
    heard.append(["add", {"a": a, "b": b}])
    return a + b


print(json.dumps({"calls": heard, "answer": agent.run_sync(task).output}))
