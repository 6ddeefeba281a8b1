"""mini-swe-agent: PyPI package ``mini-swe-agent``, program ``mini``. Speaks chat completions."""

from __future__ import annotations

from core.harnesses.base import Harness, Job, Program, Start, find_program


def find() -> Program:
    """The program ``mini``."""
    return find_program("mini", hint="pipx install mini-swe-agent")


def start(program: Program, job: Job) -> Start:
    """``mini`` without questions and without a limit of cost: prices of one's own models are not known."""
    env = {
        **program.env(),
        "OPENAI_API_KEY": job.api_key,
        "OPENAI_API_BASE": job.base_url,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_GLOBAL_CONFIG_DIR": str(job.home / "mini"),
        # Its list of prices would come from the network.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [str(program.path), "-y", "--exit-immediately", "-l", "0", "-m", f"openai/{job.model}"]
    return Start([*command, "-o", str(job.home / "trajectory.json"), "-t", job.prompt], env)


HARNESS = Harness("mini-swe-agent", "mini-swe-agent", find, start, memory_mb=270, cpu_s=10.7)
