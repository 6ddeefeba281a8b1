"""opencode: https://opencode.ai, npm package ``opencode-ai``. Speaks chat completions."""

from __future__ import annotations

import json

from core.harnesses.base import Harness, Job, Program, Start, find_program

CONTEXT, OUTPUT = 131_072, 8_192
# Its list of hosted models, updates, plugins and language servers would come from the network.
OFFLINE = {
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
}


def find() -> Program:
    """The program ``opencode``."""
    return find_program("opencode", hint="npm install -g opencode-ai")


def start(program: Program, job: Job) -> Start:
    """``opencode run`` with a provider for the gateway; every tool is allowed, the sandbox is the limit."""
    model = {"name": job.model, "limit": {"context": CONTEXT, "output": OUTPUT}}
    config = {
        "provider": {
            "studio": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Studio",
                "options": {"baseURL": job.base_url, "apiKey": job.api_key},
                "models": {job.model: model},
            }
        },
        "model": f"studio/{job.model}",
        "small_model": f"studio/{job.model}",
        "permission": {"*": "allow"},
        "autoupdate": False,
        "share": "disabled",
    }
    env = {
        **program.env(),
        **{f"XDG_{kind}_HOME": str(job.home / kind.lower()) for kind in ("CONFIG", "DATA", "STATE", "CACHE")},
        "OPENCODE_CONFIG": str(job.home / "opencode.json"),
        **OFFLINE,
    }
    command = [str(program.path), "run", "--model", f"studio/{job.model}", "--format", "json", "--print-logs"]
    # As an argument, opencode would put it into quotes and escape those in it.
    return Start(command, env, {"opencode.json": json.dumps(config)}, stdin=job.prompt.encode())


HARNESS = Harness("opencode", "opencode", find, start, memory_mb=533, cpu_s=8.5)
