"""LlamaIndex' function agent, which streams: ``DIALECT BASE_URL KEY TASK`` -> what it saw, as JSON."""

import asyncio
import json
import sys

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike

heard = []


def note(text: str) -> str:
    """Write something down."""
    heard.append(["note", {"text": text}])
    return f"noted: {text}"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    heard.append(["add", {"a": a, "b": b}])
    return a + b


async def main(_: str, base_url: str, key: str, task: str) -> None:
    llm = OpenAILike(
        model="policy",
        api_base=f"{base_url}/v1",
        api_key=key,
        max_retries=0,
        is_chat_model=True,
        is_function_calling_model=True,
    )
    agent = FunctionAgent(tools=[note, add], llm=llm, system_prompt="Count well.")
    print(json.dumps({"calls": heard, "answer": str(await agent.run(task))}))


asyncio.run(main(*sys.argv[1:]))
