"""Display of one step: messages, facts, raw record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import streamlit as st

from core.pool import Pool
from core.pool.query.lifecycle import STAGES
from studio import components, state
from studio.glossary import define
from studio.kit.figures import section
from studio.kit.format import DASH, ago, count, counted, escape, escape_markdown, number, seconds, short_uid
from studio.kit.html_tables import dot_label, html_table
from studio.widgets.plans.batches import STATE_TONE, recipe_name
from studio.widgets.steps.messages import delta, edited_answer, headline

TOKEN_SOURCE_TEXT = {
    "engine": "ids as the engine sampled them",
    "logprobs": "ids read from the engine's log-prob entries",
    "whitebox": "ids submitted by the producer",
    "bytes": "text bytes only, no ids of the model",
    "retokenized": "text encoded again: not the sampled ids",
    "edited": "the answer was edited by a person: not the sampled ids",
    "none": "no ids known",
}
TRANSITION_TEXT = {
    "extends": "its prompt continues the parent's prompt and answer token by token",
    "realigned": "the same conversation in different tokens",
    "tail_replaced": "the end of the parent's context was replaced",
    "compacted": "the history was rewritten into a shorter one",
    "forked": "continues from an earlier point than its predecessor",
}
IDENTITY_TEXT = {
    "path": "named by the URL path",
    "header": "named by request headers",
    "key": "named by the session key",
    "harness": "named by the harness's own headers",
    "model_name": "named inside the model name",
    "inferred": "inferred by the longest shared prefix",
    "producer": "named by the producer",
}


NAMED_TOOLS = 6
"""Tools whose names stand in the closed list."""


def timeline_rows(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Steps of a trajectory as rows of ``components.timeline``."""
    names = ("step_uid", "step_index", "transition", "call_kind", "status", "finish_reason", "quality")
    return [
        {
            **{name: step.get(name) for name in names},
            "n_prompt_tokens": int(step.get("n_prompt_tokens") or 0),
            "n_response_tokens": int(step.get("n_response_tokens") or 0),
            "n_shared_tokens": int(step.get("n_shared_tokens") or 0),
            "latency_s": step.get("latency_s"),
            "reward": step.get("reward"),
            "trainable": bool(step.get("trainable")),
            "what": headline(step),
        }
        for step in steps
    ]


def show_messages(step: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], pool: Pool) -> None:
    """Draw the folded history, new messages and the answer with results of its calls.

    ``steps`` are the trajectory's, without messages; the parent and the first child are read with messages.
    """
    uid = step["step_uid"]
    # All of the parent's messages are needed only to compare them, where ingest has not counted the shared ones.
    read_parent = pool.steps.turn if step["n_shared_messages"] is not None else pool.steps.get
    parent = read_parent(step["parent_step_uid"]) if step.get("parent_step_uid") else None
    children = [other["step_uid"] for other in steps if other.get("parent_step_uid") == uid]
    entries = delta(step, parent=parent, later=[pool.steps.get(child, tokens=False) for child in children[:1]])
    if (edit := pool.edits.current(uid)) is not None:
        entries += edited_answer(edit.message, edit.author)
    components.messages_view(uid=str(step["step_uid"]), entries=entries, key="step-messages")
    tools = step.get("tools")
    if tools:
        names = [str((tool.get("function") or tool).get("name", "?")) for tool in tools]
        shown = ", ".join(names[:NAMED_TOOLS]) + (
            f" and {len(names) - NAMED_TOOLS} more" if len(names) > NAMED_TOOLS else ""
        )
        title = f"{counted(len(tools), 'tool')} offered: {escape_markdown(shown)}"
        with st.expander(title, icon=":material/build:"):
            st.code(json.dumps(tools, ensure_ascii=False, indent=2), language="json")


def show_facts(step: Mapping[str, Any]) -> None:
    """All fields of the call, each with its meaning."""
    stage_times(step)
    left, right = st.columns(2, gap="medium")
    with left:
        section("Identity")
        _facts(step, ("step_uid", "trajectory_uid", "prompt_uid", "step_index", "parent_step_uid", "response_id"))
        doubt = (step.get("metadata") or {}).get("uncertain")
        identity = {**step, "uncertain": doubt} if doubt and step.get("identity_source") == "inferred" else step
        _facts(identity, ("channel", "source", "agent", "run", "identity_source", "uncertain"))
        section("Tokens")
        _facts(
            step,
            ("token_source", "mismatch", "n_prompt_tokens", "n_shared_tokens", "n_response_tokens", "transition"),
        )
        _facts(step, ("tokenizer_hash",))
    with right:
        section("Call")
        _facts(step, ("model", "engine", "dialect", "stream_mode", "status", "error", "finish_reason"))
        _facts(step, ("latency_s", "created_at", "policy_version", "policy_version_end"))
        section("Training")
        _facts(step, ("call_kind", "trainable", "reward", "quality", "is_last"))
        _consumption(step)
        section("Journal")
        _facts(step, ("journal_segment", "journal_offset", "ingested_at"))
    for title, name in (("Sampling", "sampling"), ("Metadata", "metadata")):
        section(title)
        if step.get(name):
            st.code(json.dumps(step[name], ensure_ascii=False, indent=2, default=str), language="json")
        else:
            st.caption("none recorded")


def stage_times(step: Mapping[str, Any]) -> None:
    """When the step reached each stage, with the time since the previous one."""
    service = state.service()
    at = service.pool.steps.stage_times(str(step["step_uid"]))
    cells = []
    before: float | None = None
    for stage, doc in STAGES.items():
        moment = at[stage]
        since = (
            ""
            if moment is None or before is None
            else f"{'+' if moment >= before else '−'}{seconds(abs(moment - before))}"
        )
        when = DASH if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S")
        day = "" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d")
        tone = "muted" if moment is None else ""
        exact = "" if moment is None else datetime.fromtimestamp(moment, UTC).isoformat(" ")
        cells.append(
            f'<div class="{tone}" title="{escape(doc)}\n{exact}"><i></i><b>{stage}</b><span>{when}</span>'
            f"<small>{escape(since or day or 'not yet')}</small></div>"
        )
        before = moment if moment is not None else before
    section("Timeline", "UTC; each with the time since the previous stage")
    st.html(f'<div class="cs-life">{"".join(cells)}</div>')


def _consumption(step: Mapping[str, Any]) -> None:
    """Every batch that contained the step: consumer, state, and a link."""
    service = state.service()
    batches = service.pool.consumption.of_step(step["step_uid"])
    if not batches:
        return
    section("Batches", "that contained this step")
    rows = []
    for one in batches:
        link = state.link("consume", batch=one["batch_uid"])
        rows.append(
            (
                f'<a href="{escape(link)}" target="_self">{short_uid(one["batch_uid"])}</a>',
                dot_label(one["state"], STATE_TONE[one["state"]]),
                escape(one["consumer"]),
                escape(recipe_name(one)),
                number(one["advantage"]),
                ago(one["finished_at"] or one["leased_at"], service.clock()),
            )
        )
    html_table(["Batch", "State", "Consumer", "Recipe", "Advantage", "When"], rows)


def show_raw(step: Mapping[str, Any]) -> None:
    """The step as the API returns it."""
    wire = {name: _plain(value) for name, value in step.items()}
    text = json.dumps(wire, ensure_ascii=False, indent=2, default=str)
    uid = step["step_uid"]
    components.plain_text(
        text=_ids_on_one_line(text),
        label=f"As GET /api/v1/steps/{uid} returns it · {count(len(text))} characters",
        name=f"{uid}.json",
        key="step-raw",
    )


def _facts(step: Mapping[str, Any], names: Sequence[str]) -> None:
    cells = []
    for name in names:
        if name not in step:
            continue
        value, note = _fact(name, step[name])
        tip = define(name) or define(name.replace("_", " ")) or ""
        extra = f' <span style="opacity:.65">{escape(note)}</span>' if note else ""
        cells.append(f'<dt title="{escape(tip)}">{escape(name)}</dt><dd>{escape(value)}{extra}</dd>')
    if cells:
        st.html(f'<dl class="cs-facts">{"".join(cells)}</dl>')


def _fact(name: str, value: Any) -> tuple[str, str]:
    if value is None:
        return DASH, ""
    if name == "token_source":
        return str(value), TOKEN_SOURCE_TEXT.get(str(value), "")
    if name == "transition":
        return str(value), TRANSITION_TEXT.get(str(value), "")
    if name == "identity_source":
        return str(value), IDENTITY_TEXT.get(str(value), "")
    if name == "latency_s":
        return seconds(float(value)), ""
    if isinstance(value, bool):
        return "yes" if value else "no", ""
    if isinstance(value, float):
        return number(value, 4), ""
    return (count(value) if isinstance(value, int) and name.startswith("n_") else str(value)), ""


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _ids_on_one_line(text: str) -> str:
    """Put lists of numbers on one line each, so that ten thousand ids are not ten thousand lines."""
    lines: list[str] = []
    run: list[str] = []
    for line in text.split("\n"):
        bare = line.strip().rstrip(",")
        if bare and (bare == "null" or bare.lstrip("-").replace(".", "", 1).replace("e-", "", 1).isdigit()):
            run.append(line.strip())
            continue
        if run:
            lines.append("    " + " ".join(run))
            run = []
        lines.append(line)
    return "\n".join(lines)
