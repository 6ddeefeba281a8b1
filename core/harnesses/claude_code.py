"""Claude Code: npm package ``@anthropic-ai/claude-code``. Speaks Anthropic's Messages."""

from __future__ import annotations

from core.harnesses.base import Harness, Job, Program, Start, find_program

TOOLS = "Bash Edit Glob Grep Read Write"


def find() -> Program:
    """The program ``claude``."""
    return find_program("claude", hint="npm install -g @anthropic-ai/claude-code")


def start(program: Program, job: Job) -> Start:
    """``claude -p`` with the tools that work on files; updates and telemetry are off."""
    env = {
        **program.env(),
        "ANTHROPIC_BASE_URL": job.root,
        "ANTHROPIC_AUTH_TOKEN": job.api_key,
        "ANTHROPIC_MODEL": job.model,
        "ANTHROPIC_SMALL_FAST_MODEL": job.model,
        "CLAUDE_CONFIG_DIR": str(job.home / "claude"),
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return Start([str(program.path), "-p", job.prompt, "--allowedTools", *TOOLS.split()], env)


HARNESS = Harness("claude-code", "Claude Code", find, start, memory_mb=342, cpu_s=3.1)
