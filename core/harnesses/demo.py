"""The studio's demo agent: list, read and write files, then finish. It needs nothing but this Python."""

from __future__ import annotations

import json

from core.harnesses.base import Harness, Job, Program, Start, own_file, this_python

MAX_TURNS = 12
AGENT = "tasks/demo_agent.py"


def find() -> Program:
    """This Python and the agent's file."""
    return this_python(own_file(AGENT))


def start(program: Program, job: Job) -> Start:
    """``demo_agent.py`` as a program; its settings are its input."""
    settings = {
        "base_url": job.base_url,
        "api_key": job.api_key,
        "model": job.model,
        "prompt": job.prompt,
        "max_turns": MAX_TURNS,
        "seed": job.seed,
    }
    return Start([str(program.path), "-I", "-S", str(own_file(AGENT))], stdin=json.dumps(settings).encode())


HARNESS = Harness("demo", "the studio's demo agent", find, start, memory_mb=30, cpu_s=0.3)
