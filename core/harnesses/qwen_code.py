"""Qwen Code: npm package ``@qwen-code/qwen-code``. Speaks chat completions."""

from __future__ import annotations

from core.harnesses.base import Harness, Job, Program, Start, find_program


def find() -> Program:
    """The program ``qwen``."""
    return find_program("qwen", hint="npm install -g @qwen-code/qwen-code")


def start(program: Program, job: Job) -> Start:
    """``qwen -p`` with every tool allowed; the sandbox is the limit."""
    env = {
        **program.env(),
        "OPENAI_API_KEY": job.api_key,
        "OPENAI_BASE_URL": job.base_url,
        "OPENAI_MODEL": job.model,
    }
    return Start([str(program.path), "-p", job.prompt, "--yolo"], env)


HARNESS = Harness("qwen-code", "Qwen Code", find, start, memory_mb=346, cpu_s=11.9)
