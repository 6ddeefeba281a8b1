"""LangChain's agent, a LangGraph graph: ``DIALECT BASE_URL KEY TASK`` -> what it saw, as JSON."""

import json
import sys

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

dialect, base_url, key, task = sys.argv[1:]
heard = []


@tool
def note(text: str) -> str:
    """Write something down."""
    heard.append(["note", {"text": text}])
    return f"noted: {text}"


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    heard.append(["add", {"a": a, "b": b}])
    return a + b


if dialect == "messages":
    model = ChatAnthropic(model="policy", base_url=base_url, api_key=key, max_retries=0, max_tokens=1000)
else:
    more = {"use_responses_api": True} if dialect == "responses" else {"streaming": True, "stream_usage": True}
    model = ChatOpenAI(model="policy", base_url=f"{base_url}/v1", api_key=key, max_retries=0, **more)
agent = create_agent(model, [note, add], system_prompt="Count well.")
last = agent.invoke({"messages": [{"role": "user", "content": task}]})["messages"][-1]
text = last.text if isinstance(last.text, str) else last.text()
print(json.dumps({"calls": heard, "answer": str(text)}))
