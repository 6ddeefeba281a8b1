"""OpenAI's Agents SDK: ``DIALECT BASE_URL KEY TASK`` -> what it saw, as JSON."""

import asyncio
import json
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
heard = []


@function_tool
def note(text: str) -> str:
    """Write something down."""
    heard.append(["note", {"text": text}])
    return f"noted: {text}"


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    heard.append(["add", {"a": a, "b": b}])
    return a + b


async def main(dialect: str, base_url: str, key: str, task: str) -> None:
    client = AsyncOpenAI(base_url=f"{base_url}/v1", api_key=key, max_retries=0)
    model = (OpenAIResponsesModel if dialect == "responses" else OpenAIChatCompletionsModel)("policy", client)
    agent = Agent(name="Counter", instructions="Count well.", tools=[note, add], model=model)
    if dialect == "chat":
        result = await Runner.run(agent, task)
    else:
        result = Runner.run_streamed(agent, task)
        async for _ in result.stream_events():
            pass
    print(json.dumps({"calls": heard, "answer": result.final_output}))


asyncio.run(main(*sys.argv[1:]))
