"""Codex: npm package ``@openai/codex``. Speaks Responses."""

from __future__ import annotations

import json

from core.harnesses.base import Harness, Job, Program, Start, find_program


def find() -> Program:
    """The program ``codex``."""
    return find_program("codex", hint="npm install -g @openai/codex")


def start(program: Program, job: Job) -> Start:
    """``codex exec`` with a provider for the gateway. Its own sandbox is off: it runs inside ours."""
    lines = [
        f"model = {json.dumps(job.model)}",
        'model_provider = "studio"',
        "",
        "[model_providers.studio]",
        'name = "Studio"',
        f"base_url = {json.dumps(job.base_url)}",
        'env_key = "STUDIO_KEY"',
        'wire_api = "responses"',
    ]
    env = {**program.env(), "CODEX_HOME": str(job.home / "codex"), "STUDIO_KEY": job.api_key}
    command = [str(program.path), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return Start([*command, job.prompt], env, {"codex/config.toml": "\n".join(lines) + "\n"})


HARNESS = Harness("codex", "Codex CLI", find, start, memory_mb=360, cpu_s=1.4)
