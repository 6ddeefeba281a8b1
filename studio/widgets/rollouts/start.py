"""The form that starts a run."""

from __future__ import annotations

from typing import Any

import streamlit as st

from core.errors import InvalidInput, StudioError
from core.harnesses import NAMES, REGISTRY
from core.harnesses.command import words_of
from core.rollouts.planning import Wish
from core.rollouts.settings import SOLVED_ABOVE
from core.sandbox import LEVELS
from studio import kit, state

PATH = "another folder or file …"
ANY_SPLIT = "all tasks"


def start_form() -> None:
    """Pack, agent and numbers; starts the run and shows it."""
    host = state.service().rollouts
    stored = {entry.version: f"{entry.name}  ·  {kit.count(entry.n_tasks)} tasks  ·  {entry.version}"
              for entry in host.packs.entries()}  # fmt: skip
    with st.form("new-run", border=True):
        left, middle, right = st.columns(3, gap="medium")
        with left:
            version = st.selectbox("Task pack", [*stored, PATH], format_func=lambda one: stored.get(one, one))
            path = st.text_input(
                "Path of the pack",
                placeholder="/absolute/path",
                help="Used if no stored pack is chosen. The pack is then stored",
            )
            split = st.selectbox("Tasks", [ANY_SPLIT, "train", "val"])
            tasks = st.text_input("Only these tasks", placeholder="ids, separated by commas")
        with middle:
            agent = st.selectbox(
                "Agent", NAMES, format_func=lambda one: REGISTRY[one].title if one in REGISTRY else "a command line"
            )
            command = st.text_input(
                "Command line",
                placeholder="my-agent --url {base_url} --task {prompt}",
                help="For the agent “a command line”. Placeholders: {prompt}, {base_url}, {anthropic_base_url}, "
                "{api_key}, {model}, {workspace}, {home}, {seed}. Files that are named by an absolute path "
                "can be read",
            )
            model = st.text_input("Model", placeholder="the engine's only model")
            channel = st.text_input("Channel", placeholder="the default channel")
        with right:
            attempts = st.number_input("Attempts per task", 1, 1024, 4)
            workers = st.number_input(
                "Parallel attempts", 0, 512, 0, help="0: from free memory and the measured cost of the agent"
            )
            seed = st.number_input("Seed", 0, 2**31 - 1, 0, help="Attempt n uses seed + n")
            isolation = st.selectbox(
                "Minimum isolation",
                LEVELS,
                help="The strongest level of this machine is used. The run does not start if that is below this one",
            )
        limits = _limits()
        if not st.form_submit_button("Start", icon=":material/play_arrow:", type="primary"):
            return
    pack = version if version != PATH else path.strip()
    try:
        if not pack:
            raise InvalidInput("no pack is chosen", field="pack", hint="choose a stored pack, or enter a path")
        wish = Wish(
            agent=agent,
            command=words_of(command) if agent == "command" else (),
            attempts=int(attempts),
            workers=int(workers) or None,
            model=model.strip() or None,
            channel=channel.strip() or None,
            seed=int(seed),
            isolation=isolation,
            tasks=[one.strip() for one in tasks.split(",") if one.strip()],
            split=None if split == ANY_SPLIT else split,
            **limits,
        )
        with st.spinner("Checking pack, agent and sandbox…"):
            run = host.start(pack, wish)
    except StudioError as error:
        kit.show_error(error)
        return
    state.goto("rollouts", run=run.settings.run)


def _limits() -> dict[str, Any]:
    """Limits of an attempt, what else the agent may read, and the score above which an attempt is solved."""
    with st.expander("Limits of an attempt, readable files, solved above"):
        left, middle, right = st.columns(3, gap="medium")
        time_s = left.number_input(
            "Agent's time, seconds", min_value=1.0, value=None, placeholder="the task's, else the agent's"
        )
        check_s = left.number_input("Check's time, seconds", min_value=1.0, value=None, placeholder="the check's")
        memory = middle.number_input(
            "Memory, MiB", min_value=1, value=None, placeholder="four times the agent's measured need"
        )
        calls = middle.number_input("Model calls", min_value=1, value=None, placeholder="no limit")
        above = right.number_input("Solved above", 0.0, 1.0, SOLVED_ABOVE, help="0.5 is ClawGym's rule")
        readable = right.text_area(
            "Readable files and folders", placeholder="absolute paths, one a line", height=68,
            help="Beside the agent's own program and what its command line names",
        )  # fmt: skip
    return {
        "time_s": time_s,
        "check_time_s": check_s,
        "memory_mb": memory,
        "max_calls": calls,
        "solved_above": above,
        "readable": [line.strip() for line in readable.splitlines() if line.strip()],
    }
