"""smolagents' tool-calling agent: ``DIALECT BASE_URL KEY TASK`` -> what it saw, as JSON."""

import json
import sys
from typing import ClassVar

from smolagents import OpenAIModel, Tool, ToolCallingAgent

_, base_url, key, task = sys.argv[1:]
heard = []


class Note(Tool):
    name = "note"
    description = "Write something down."
    inputs: ClassVar = {"text": {"type": "string", "description": "what to write"}}
    output_type = "string"

    def forward(self, text: str) -> str:
        heard.append(["note", {"text": text}])
        return f"noted: {text}"


class Add(Tool):
    name = "add"
    description = "Add two numbers."
    inputs: ClassVar = {
        "a": {"type": "integer", "description": "one"},
        "b": {"type": "integer", "description": "other"},
    }
    output_type = "integer"

    def forward(self, a: int, b: int) -> int:
        heard.append(["add", {"a": a, "b": b}])
        return a + b


model = OpenAIModel("policy", api_base=f"{base_url}/v1", api_key=key, client_kwargs={"max_retries": 0})
agent = ToolCallingAgent(tools=[Note(), Add()], model=model, verbosity_level=0)
print(json.dumps({"calls": heard, "answer": str(agent.run(task))}))
