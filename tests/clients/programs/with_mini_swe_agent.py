"""mini-swe-agent's own agent, model and environment: ``DIALECT BASE_URL KEY TASK`` -> what it saw, as JSON."""

import json
import logging
import sys
from pathlib import Path

import yaml
from minisweagent import package_dir
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

logging.disable(logging.CRITICAL)
_, base_url, key, task = sys.argv[1:]
settings = yaml.safe_load(Path(package_dir / "config" / "mini.yaml").read_text())
known = {name: settings["agent"][name] for name in ("system_template", "instance_template")}
model = LitellmModel(
    model_name="openai/policy",
    model_kwargs={"api_base": f"{base_url}/v1", "api_key": key, "num_retries": 0},
    cost_tracking="ignore_errors",
)
agent = DefaultAgent(model, LocalEnvironment(cwd=str(Path.cwd())), **known, cost_limit=0)
agent.run(task)
calls = [
    [call["function"]["name"], json.loads(call["function"]["arguments"])]
    for message in agent.messages
    for call in message.get("tool_calls") or ()
]
contents = [message["content"] for message in agent.messages if message["role"] == "assistant"]
print(json.dumps({"calls": calls, "answer": contents[-1]}))
