"""Dataset versions: the list, one version with its provenance and export, and the difference of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import streamlit as st

from core.batch.datasets import version_plan
from core.export import EXPORTERS
from core.pool.versions import LABELS, MASK_COLUMNS
from studio import kit, state
from studio.kit.data_tables import page_from_query, pagination, version_span
from studio.kit.figures import Tone
from studio.kit.html_tables import bars, dot_label, html_table
from studio.kit.url_choices import list_choice, segmented_choice
from studio.widgets.datasets.members import PARAMS, member_section
from studio.widgets.plans.export_job import ExportJob
from studio.widgets.plans.export_view import show_job

CHANGES_PER_PAGE = 100
ANY = "any"
COMPARED = (*LABELS, *MASK_COLUMNS)
MASKS = {"mask_starts": "redacted from token", "mask_ends": "redacted to token", "mask_id": "redacted with token id"}
CHANGES = {"all": "All", "added": "Added", "removed": "Removed", "changed": "Changed"}
Head = Mapping[str, Any]


def versions_tab() -> None:
    """The list of versions; the chosen one below."""
    service = state.service()
    heads = service.pool.versions.all()
    if not heads:
        kit.empty_state(
            "No version yet",
            "Filter on Curate or here, then freeze: the content of a version never changes.",
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
    requested = state.query("version")
    chosen = names[cells[0][0]] if cells else requested if requested in names else names[0]
    if chosen != requested and cells:
        state.set_query(version=chosen, page=None, **dict.fromkeys(PARAMS))
    one_version(next(head for head in heads if head["name"] == chosen))


def one_version(head: Head) -> None:
    """One version: counts, provenance, redaction, export, verification."""
    pool = state.service().pool
    origin = head["provenance"]
    kit.section(head["name"], head["note"] or "")
    if segmented_choice("Show", {"about": "About", "rows": "Rows"}, "show") == "rows":
        member_section(head)
        return
    policy = origin.get("reward_policy")
    kit.figures(
        [
            kit.Figure("Groups", kit.count(head["n_groups"]), help="prompt group"),
            kit.Figure("Trajectories", kit.count(head["n_trajectories"]), help="trajectory"),
            kit.Figure("Steps", kit.count(head["n_steps"]), sub=f"{kit.count(origin.get('n_trainable'))} trainable"),
            kit.Figure("Tokens", kit.compact(head["n_tokens"])),
            kit.Figure(
                "Policy", version_span(origin.get("policy_version_min"), origin.get("policy_version_max")) or kit.DASH
            ),
            kit.Figure("Reward", str((policy or {}).get("name") or (policy or {}).get("rule") or "newest reward")),
            kit.Figure("Parent", str(head["parent"] or kit.DASH)),
        ],
        dense=True,
    )
    left, right = st.columns(2, gap="medium")
    with left:
        kit.section("Provenance", "steps by origin")
        for name in ("sources", "agents", "models", "token_sources"):
            if origin.get(name):
                st.html(kit.caption_html(name.replace("_", " ")))
                bars(list(origin[name].items()))
        hashes = list(origin.get("tokenizer_hashes") or {})
        kit.facts([("tokenizer", text) for text in hashes] + [("content hash", head["content_hash"])])
        redaction_report(head["redaction"])
    with right:
        export_section(head)
        with st.expander("View and recipe", icon=":material/tune:"):
            st.json({"view": head["view"], "recipe": head["recipe"]}, expanded=2)
        if st.button("Verify the hash", icon=":material/verified:", key="version-verify"):
            intact = pool.versions.verify(head["name"])
            verdict = (
                "The hash is correct: the content has not changed since it was frozen."
                if intact
                else "The hash is wrong: the content has changed since it was frozen."
            )
            st.html(f'<div class="cs-callout {"good" if intact else "bad"}"><div class="m">{verdict}</div></div>')


def redaction_report(applied: Mapping[str, Any] | None) -> None:
    """What was redacted when the version was frozen."""
    if applied is None:
        return
    kit.section("Redacted", f"a step with a match is {'masked' if applied['action'] == 'mask' else 'dropped'}")
    report = applied.get("report") or {}
    kit.facts([(counted_name(key), value) for key, value in report.items() if not isinstance(value, Mapping | list)])
    for key, value in report.items():
        if isinstance(value, Mapping) and value:
            st.html(kit.caption_html(counted_name(key)))
            bars([(str(name), int(n)) for name, n in value.items()])


def counted_name(key: str) -> str:
    """A count's name as words.

    >>> counted_name("n_tokens_masked")
    'tokens masked'
    """
    return key.removeprefix("n_").replace("_", " ")


def export_section(head: Head) -> None:
    """Export of the version by its frozen recipe."""
    service = state.service()
    kit.section("Export", "the same version always gives the same bytes")
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
            plan = version_plan(service.pool, head["name"])
        job = ExportJob(plan, service.pool, name, service.settings.export_dir, {}, service.clock)
        st.session_state["version-job"] = job
    if job is not None:
        of = (job.plan.dataset_version or {}).get("name")
        if of != head["name"]:
            st.html(kit.caption_html(f"The export of version {of}:"))
        show_job(job)


def diff_tab() -> None:
    """Rewards, and steps added, removed and changed, of two versions, which are in the URL as ``a`` and ``b``."""
    pool = state.service().pool
    heads = pool.versions.all()
    names = [head["name"] for head in heads]
    if len(names) < 2:
        then = ("Freeze a view", partial(state.set_query, tab="freeze"))
        kit.empty_state("Compare needs two versions", "Freeze a second version first.", icon="compare", then=then)
        return
    b = version_from_query(names, "b", version_from_query(names, "version", names[0]))
    a = version_from_query(names, "a", earlier_version(heads, b))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        chosen_a = st.selectbox("From", names, index=names.index(a), key=f"diff-a-{a}")
        chosen_b = st.selectbox("To", names, index=names.index(b), key=f"diff-b-{b}")
    if (chosen_a, chosen_b) != (a, b):
        state.set_query(a=chosen_a, b=chosen_b)
        st.rerun()
    uids = {head["name"]: head["version_uid"] for head in heads}
    requested = state.query("change")
    change = requested if requested in CHANGES and requested != "all" else None
    label = state.query("label")
    chosen = (change, label if label in COMPARED else None, (state.query("uid", "") or "").strip())
    with st.spinner("Comparing…", show_time=True):
        pool_path = str(state.service().settings.pool_path)
        difference = _diff(pool_path, uids[a], uids[b], chosen, page_from_query(), a, b)
    counts, rewards = difference["counts"], difference["rewards"]
    before, after = (kit.number(mean) for mean in rewards["mean"])
    kit.figures(
        [
            kit.Figure("Added", kit.count(counts["added"]), tone="good" if counts["added"] else ""),
            kit.Figure("Removed", kit.count(counts["removed"]), tone="bad" if counts["removed"] else ""),
            kit.Figure("Changed", kit.count(counts["changed"]), tone="warn" if counts["changed"] else ""),
            kit.Figure("Unchanged", kit.count(counts["same"])),
            kit.Figure("Mean reward", f"{before} → {after}", sub="by trajectory"),
            kit.Figure("Rewards changed", f"{kit.count(rewards['n_rose'])} ↑ {kit.count(rewards['n_fell'])} ↓"),
        ],
        dense=True,
    )
    left, right = st.columns([7, 3], gap="medium")
    with left:
        step_changes(difference, chosen)
    with right:
        kit.section("Changed labels", "number of steps")
        by_label = [(label_name(name), n) for name, n in counts["by_label"].items()]
        bars(by_label) if by_label else st.caption("None.")
        recipe_differences(difference["recipe"], (a, b))


@st.cache_resource(max_entries=8, show_spinner=False)
def _diff(
    pool_path: str, a_uid: str, b_uid: str, chosen: tuple[str | None, str | None, str], page: int, _a: str, _b: str
) -> Mapping[str, Any]:
    """A page of the difference of two versions, cached since versions never change.

    ``chosen``: which changes, by kind, label and part of a uid.
    """
    change, label, text = chosen
    difference: Mapping[str, Any] = state.service().pool.versions.diff(
        _a,
        _b,
        limit=CHANGES_PER_PAGE,
        offset=(page - 1) * CHANGES_PER_PAGE,
        change=change,
        label=label,
        text=text,
    )
    return difference


def earlier_version(heads: Sequence[Head], name: str) -> str:
    """What a version is compared with: the one that it follows, else the one frozen before it, else another."""
    place = next(place for place, head in enumerate(heads) if head["name"] == name)
    named = heads[place]["parent"]
    if named is not None and any(head["name"] == named for head in heads):
        return str(named)
    return str(heads[place + 1 if place + 1 < len(heads) else 0]["name"])


def version_from_query(names: Sequence[str], param: str, default: str) -> str:
    """The version in the URL, else the default."""
    requested = state.query(param)
    return requested if requested is not None and requested in names else default


def step_changes(difference: Mapping[str, Any], chosen: tuple[str | None, str | None, str]) -> None:
    """Filters, and a page of the added, removed and changed steps, each with a link to Inspect."""
    tones: dict[str, Tone] = {"added": "good", "removed": "bad", "changed": "warn"}
    counts = difference["counts"]
    kit.section("Steps", "added, removed, or with other labels")
    if not sum(counts[name] for name in tones):
        st.caption("Both contain the same steps with the same labels.")
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        segmented_choice("Change", CHANGES, "change")
        labels = {ANY: "any label", **{name: label_name(name) for name in counts["by_label"]}}
        list_choice("Changed label", labels, "label", width=190)
        st.session_state["diff-uid"] = chosen[2]
        st.text_input("Uid", placeholder="part of a uid", key="diff-uid", on_change=_uid_typed, width=180)
    if not difference["n_changes"]:
        kit.empty_state("No change matches", "Remove a filter to see more.", icon="filter_alt_off")
        return
    html_table(
        ("Change", "Prompt group", "Trajectory", "Step", "Trajectory reward", "Labels"),
        [
            (
                dot_label(row["change"], tones[row["change"]]),
                kit.uid_html(row["prompt_uid"], length=20),
                kit.uid_html(row["trajectory_uid"], length=24),
                f'<a href="{kit.escape(state.link("inspect", step=row["step_uid"]))}" target="_self">'
                f"{kit.count(row['step_index'])}</a>",
                reward_change(row),
                "<br>".join(
                    f"{kit.escape(label_name(name))}: {label_text(old)} → {label_text(new)}"
                    for name, (old, new) in row["labels"].items()
                    if name != "trajectory_reward"
                ),
            )
            for row in difference["changes"]
        ],
    )
    pagination(difference["n_changes"], key=f"diff-{hash(chosen)}", size=CHANGES_PER_PAGE, noun="steps")


def _uid_typed() -> None:
    state.set_query(uid=st.session_state["diff-uid"].strip() or None, page=None)


def reward_change(row: Mapping[str, Any]) -> str:
    """The trajectory's reward in both versions, as HTML; one number where a version lacks the step or both agree."""
    old, new = row["trajectory_reward"]
    if row["change"] == "added":
        return label_text(new)
    if row["change"] == "removed" or old == new:
        return label_text(old)
    return f"{label_text(old)} → {label_text(new)}"


def label_name(name: str) -> str:
    """A frozen column as words."""
    return MASKS.get(name, name.replace("_", " "))


def label_text(value: Any) -> str:
    """A label as text; an unknown one is the dash."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return kit.number(value) if isinstance(value, float) else kit.escape(value)


def recipe_differences(recipes: Sequence[Mapping[str, Any]], names: tuple[str, str]) -> None:
    """The fields in which the two recipes differ."""
    one, other = recipes
    differ = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    kit.section("Recipe")
    if not differ:
        st.caption("No difference.")
        return
    html_table(("field", *names), [(kit.escape(k), kit.escape(one.get(k)), kit.escape(other.get(k))) for k in differ])
