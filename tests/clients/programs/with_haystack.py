"""Haystack's agent: ``DIALECT BASE_URL KEY TASK`` -> what it saw, as JSON."""

import json
import sys
from typing import Annotated

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret

dialect, base_url, key, task = sys.argv[1:]
heard = []


@tool
def note(text: Annotated[str, "what to write"]) -> str:
    """Write something down."""
    heard.append(["note", {"text": text}])
    return f"noted: {text}"


@tool
def add(a: Annotated[int, "one"], b: Annotated[int, "other"]) -> int:
    """Add two numbers."""
    heard.append(["add", {"a": a, "b": b}])
    return a + b


kind = OpenAIResponsesChatGenerator if dialect == "responses" else OpenAIChatGenerator
generator = kind(model="policy", api_key=Secret.from_token(key), api_base_url=f"{base_url}/v1", max_retries=0)
agent = Agent(chat_generator=generator, tools=[note, add], system_prompt="Count well.")
print(json.dumps({"calls": heard, "answer": agent.run(messages=[ChatMessage.from_user(task)])["last_message"].text}))
