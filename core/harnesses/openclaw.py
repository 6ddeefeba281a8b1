"""OpenClaw: npm package ``openclaw``, Node.js 24.16 or newer. Speaks chat completions."""

from __future__ import annotations

import json

from core.harnesses.base import Harness, Job, Program, Start, find_program

CONTEXT, OUTPUT = 131_072, 8_192


def find() -> Program:
    """The program ``openclaw``. Its first start completes its installation, which a sandbox does not let it write."""
    return find_program("openclaw", hint="npm install -g openclaw && openclaw --version")


def start(program: Program, job: Job) -> Start:
    """``openclaw agent --local`` with one message and a provider for the gateway."""
    model = {"id": job.model, "name": job.model, "contextWindow": CONTEXT, "maxTokens": OUTPUT}
    provider = {"baseUrl": job.base_url, "apiKey": job.api_key, "api": "openai-completions", "models": [model]}
    defaults = {"model": {"primary": f"studio/{job.model}"}, "workspace": str(job.workspace)}
    config = {"models": {"providers": {"studio": provider}}, "agents": {"defaults": defaults}}
    env = {
        **program.env(),
        "OPENCLAW_CONFIG_PATH": str(job.home / "openclaw.json"),
        "OPENCLAW_STATE_DIR": str(job.home / "state"),
    }
    command = [str(program.path), "agent", "--local", "--session-id", "attempt", "--message", job.prompt, "--json"]
    return Start(command, env, {"openclaw.json": json.dumps(config)})


HARNESS = Harness("openclaw", "OpenClaw", find, start, memory_mb=817, cpu_s=40.0)
