"""Dataset versions: the list, one of them with where it came from, and what differs between two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import streamlit as st

from core.batch.datasets import version_plan
from core.export import EXPORTERS
from studio import kit, state
from studio.kit.data_tables import span
from studio.kit.figures import Tone
from studio.kit.html_tables import bars, html_table, mark
from studio.widgets.plans.export_job import ExportJob
from studio.widgets.plans.export_view import show_job

SHOWN_CHANGES = 500
Head = Mapping[str, Any]


def versions_tab() -> None:
    """All versions; the chosen one below."""
    service = state.service()
    heads = service.pool.versions.all()
    if not heads:
        kit.empty_state(
            "No version yet",
            "Filter on Curate or here, then freeze: what it holds never changes again.",
            icon="inventory",
            then=("Freeze a view", partial(state.set_query, tab="freeze")),
        )
        return
    config = st.column_config
    event = st.dataframe(
        [
            {
                "name": head["name"],
                "created": kit.ago(head["created_at"], service.clock()),
                "channel": head["channel"],
                "groups": head["n_groups"],
                "trajectories": head["n_trajectories"],
                "steps": head["n_steps"],
                "tokens": head["n_tokens"],
                "parent": head["parent"],
                "redacted": head["redaction"] is not None,
                "author": head["author"],
                "note": head["note"],
                "hash": head["content_hash"][:12],
            }
            for head in heads
        ],
        hide_index=True,
        on_select="rerun",
        selection_mode="single-cell",
        row_height=29,
        height=min(320, 36 + 29 * len(heads)),
        placeholder="",
        column_config={
            **{name: config.Column(name.capitalize()) for name in ("name", "created", "channel", "parent", "redacted")},
            **{name: config.Column(name.capitalize()) for name in ("author", "note", "hash")},
            **{
                name: config.NumberColumn(name.capitalize(), format="localized")
                for name in ("groups", "trajectories", "steps", "tokens")
            },
        },
        key="versions-table",
    )
    names = [head["name"] for head in heads]
    cells = event["selection"]["cells"]
    asked = state.query("version")
    chosen = names[cells[0][0]] if cells else asked if asked in names else names[0]
    if chosen != asked and cells:
        state.set_query(version=chosen)
    one_version(next(head for head in heads if head["name"] == chosen))


def one_version(head: Head) -> None:
    """What a version holds, where it came from, and its ways out."""
    pool = state.service().pool
    origin = head["provenance"]
    kit.section(head["name"], head["note"] or "")
    policy = origin.get("reward_policy")
    kit.figures(
        [
            kit.Figure("Groups", kit.count(head["n_groups"]), help="prompt group"),
            kit.Figure("Trajectories", kit.count(head["n_trajectories"]), help="trajectory"),
            kit.Figure("Steps", kit.count(head["n_steps"]), sub=f"{kit.count(origin.get('n_trainable'))} trainable"),
            kit.Figure("Tokens", kit.compact(head["n_tokens"])),
            kit.Figure("Policy", span(origin.get("policy_version_min"), origin.get("policy_version_max")) or kit.DASH),
            kit.Figure("Reward", str((policy or {}).get("name") or (policy or {}).get("rule") or "newest word")),
            kit.Figure("Parent", str(head["parent"] or kit.DASH)),
        ],
        dense=True,
    )
    left, right = st.columns(2, gap="medium")
    with left:
        kit.section("What it is made of", "steps by source")
        for name in ("sources", "agents", "models", "token_sources"):
            if origin.get(name):
                st.html(kit.quiet(name.replace("_", " ")))
                bars(list(origin[name].items()))
        hashes = list(origin.get("tokenizer_hashes") or {})
        kit.facts([("tokenizer", text) for text in hashes] + [("content hash", head["content_hash"])])
        redaction(head["redaction"])
    with right:
        ways_out(head)
        with st.expander("View and recipe", icon=":material/tune:"):
            st.json({"view": head["view"], "recipe": head["recipe"]}, expanded=2)
        if st.button("Check its hash", icon=":material/verified:", key="version-verify"):
            intact = pool.versions.verify(head["name"])
            said = "Intact: what is stored has the hash it was frozen with." if intact else "Its content has changed."
            st.html(f'<div class="cs-callout {"good" if intact else "bad"}"><div class="m">{said}</div></div>')


def redaction(applied: Mapping[str, Any] | None) -> None:
    """What was taken out at the freeze."""
    if applied is None:
        return
    kit.section("Redacted", f"a step with a hit is {'masked' if applied['action'] == 'mask' else 'dropped'}")
    report = applied.get("report") or {}
    kit.facts([(key, value) for key, value in report.items() if not isinstance(value, Mapping | list)])
    for key, value in report.items():
        if isinstance(value, Mapping) and value:
            st.html(kit.quiet(key.replace("_", " ")))
            bars([(str(name), int(n)) for name, n in value.items()])


def ways_out(head: Head) -> None:
    """Export by the frozen recipe."""
    service = state.service()
    kit.section("Export", "the same version gives the same bytes, whatever happens in the pool")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        name = st.selectbox(
            "Format",
            list(EXPORTERS),
            format_func=lambda key: EXPORTERS[key].title,
            label_visibility="collapsed",
            key="version-format",
        )
        job: ExportJob | None = st.session_state.get("version-job")
        busy = job is not None and job.running
        pressed = st.button("Export", type="primary", icon=":material/save:", key="version-export", disabled=busy)
    st.caption(EXPORTERS[name].description)
    if pressed:
        with st.spinner("Planning…", show_time=True):
            made = version_plan(service.pool, head["name"])
        job = ExportJob(made, service.pool, name, service.settings.export_dir, {}, service.clock)
        st.session_state["version-job"] = job
    if job is not None:
        of = (job.plan.dataset_version or {}).get("name")
        if of != head["name"]:
            st.html(kit.quiet(f"The export of version {of}:"))
        show_job(job)


def diff_tab() -> None:
    """What came, went and changed from one version to another. Both stand in the URL: ``a`` and ``b``."""
    pool = state.service().pool
    heads = pool.versions.all()
    names = [head["name"] for head in heads]
    if len(names) < 2:
        then = ("Freeze a view", partial(state.set_query, tab="freeze"))
        kit.empty_state("Two versions are compared", "Freeze another one first.", icon="compare", then=then)
        return
    a, b = picked(names, "a", names[1]), picked(names, "b", names[0])
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        chosen_a = st.selectbox("From", names, index=names.index(a), key=f"diff-a-{a}")
        chosen_b = st.selectbox("to", names, index=names.index(b), key=f"diff-b-{b}")
    if (chosen_a, chosen_b) != (a, b):
        state.set_query(a=chosen_a, b=chosen_b)
        st.rerun()
    uids = {head["name"]: head["version_uid"] for head in heads}
    with st.spinner("Comparing…", show_time=True):
        difference = _diff(str(state.service().settings.pool_path), uids[a], uids[b], a, b)
    counts = difference["counts"]
    kit.figures(
        [
            kit.Figure("Added", kit.count(counts["added"]), tone="good" if counts["added"] else ""),
            kit.Figure("Removed", kit.count(counts["removed"]), tone="bad" if counts["removed"] else ""),
            kit.Figure("Changed", kit.count(counts["changed"]), tone="warn" if counts["changed"] else ""),
            kit.Figure("The same", kit.count(counts["same"])),
        ],
        dense=True,
    )
    left, right = st.columns([6, 4], gap="medium")
    with left:
        changes(difference["changes"], difference["truncated"])
    with right:
        kit.section("Changed labels", "how many steps")
        bars(list(counts["by_label"].items())) if counts["by_label"] else st.caption("None.")
        settings(difference["recipe"], (a, b))


@st.cache_resource(max_entries=8, show_spinner=False)
def _diff(pool_path: str, a_uid: str, b_uid: str, _a: str, _b: str) -> Mapping[str, Any]:
    """What differs between two versions; neither ever changes, so they are compared once."""
    difference: Mapping[str, Any] = state.service().pool.versions.diff(_a, _b, limit=SHOWN_CHANGES)
    return difference


def picked(names: Sequence[str], param: str, default: str) -> str:
    """A version that the URL names, else the default."""
    asked = state.query(param)
    return asked if asked is not None and asked in names else default


def changes(rows: Sequence[Mapping[str, Any]], truncated: bool) -> None:
    """Each step that came, went or changed."""
    tones: dict[str, Tone] = {"added": "good", "removed": "bad", "changed": "warn"}
    kit.section("Steps", f"the first {SHOWN_CHANGES}" if truncated else "")
    if not rows:
        st.caption("Both hold the same steps with the same labels.")
        return
    html_table(
        ("", "step", "what changed"),
        [
            (
                mark(row["change"], tones[row["change"]]),
                kit.uid_html(row["step_uid"], length=28),
                kit.escape("; ".join(f"{name}: {old} → {new}" for name, (old, new) in row["labels"].items())),
            )
            for row in rows
        ],
    )


def settings(recipes: Sequence[Mapping[str, Any]], names: tuple[str, str]) -> None:
    """Where the two recipes differ."""
    one, other = recipes
    differ = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    kit.section("Recipe")
    if not differ:
        st.caption("The same.")
        return
    html_table(("field", *names), [(kit.escape(k), kit.escape(one.get(k)), kit.escape(other.get(k))) for k in differ])
