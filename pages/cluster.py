"""The Cluster page: machines and gateways with their state, writers' lag, bytes at risk, keys and weights in force."""

from typing import Any

import streamlit as st

from studio import kit, state
from studio.frame.header import page_header
from studio.kit.figures import Tone
from studio.kit.html_tables import dot_label, html_table

LIVE_S = 2.0
# A copy that is behind by more is marked.
BEHIND_S = 5.0
NODE_TONES: dict[str, Tone] = {"up": "good", "starting": "warn", "unreachable": "bad", "gone": "bad"}
GATEWAY_TONES: dict[str, Tone] = {
    "up": "good",
    "starting": "warn",
    "restarting": "bad",
    "silent": "bad",
    "unknown": "muted",
}
WRITER_TONES: dict[str, Tone] = {"in_time": "good", "silent": "warn", "absent": "bad"}
WRITER_STATES = {
    "in_time": "in time",
    "silent": "behind: calls that may follow its own wait",
    "absent": "absent: nothing waits for it",
}
HERE = "this machine"
START = """\
pip install 'claw-studio[ray]'
export CLAW_STUDIO_ENGINE=http://engine.internal:8000/v1
claw-studio cluster up --data /data/studio"""


@kit.live(LIVE_S)
def live_part() -> None:
    service = state.service()
    shown = service.topology()
    nodes = [] if shown["cluster"] is None else shown["cluster"]["nodes"]
    figures(shown)
    if nodes or shown["cluster"] is not None:
        nodes_table(shown, nodes)
    gateways_table(shown, nodes)
    left, right = st.columns([3, 2], gap="small")
    with left.container(border=True, key="panel-writers", height="stretch"):
        writers_table(shown)
    with right.container(border=True, key="panel-in-force", height="stretch"):
        in_force(shown)


def figures(shown: dict[str, Any]) -> None:
    """The row of figures."""
    totals, late = shown["totals"], shown["in_force"]["unreachable"]
    kit.figures(
        [
            kit.Figure("Machines", kit.count(totals["n_nodes"]), f"{kit.count(totals['n_nodes_up'])} take calls"),
            kit.Figure(
                "Gateways",
                kit.count(totals["n_gateways"]),
                f"{kit.count(totals['n_gateways_up'])} up",
                tone="bad" if totals["n_gateways_up"] < totals["n_gateways"] else "",
            ),
            kit.Figure("Restarts", kit.count(totals["n_restarts"]), "of gateways"),
            kit.Figure("Ingest lag", kit.seconds(shown["ingest_lag_s"]), "call to pool", help="ingest lag"),
            kit.Figure(
                "Held",
                kit.count(shown["n_held"]),
                f"oldest {kit.seconds(shown['held_s'])}" if shown["n_held"] else "calls that wait",
            ),
            at_risk_figure(shown),
            kit.Figure(
                "Without the last change",
                kit.count(len(late)),
                ", ".join(late) or "all have it",
                tone="bad" if late else "",
                help="Machines that have not applied the last change of keys or weights; they hold their calls.",
            ),
        ]
    )


def at_risk_figure(shown: dict[str, Any]) -> kit.Figure:
    """Bytes that a lost disk would take, or that the journal's target has not confirmed."""
    if shown["journal_target"] != "local":
        n_bytes, age_s = shown["unshipped_bytes"], shown["unshipped_s"]
        about = "Bytes that the journal's target has not confirmed. Their calls are not answered yet."
        sub = f"for {kit.seconds(age_s)}" if n_bytes else "all copied"
        return kit.Figure("Not yet copied", kit.bytes_text(n_bytes), sub, "bad" if age_s > BEHIND_S else "", about)
    n_bytes, age_s = shown["totals"]["at_risk_bytes"], shown["totals"]["at_risk_s"]
    about = "Bytes that are on another machine's disk only, as of its last listing."
    sub = "all on this disk" if shown["cluster"] is None else f"of the last {kit.seconds(age_s)}"
    return kit.Figure("At risk", kit.bytes_text(n_bytes), sub, "bad" if age_s > BEHIND_S else "", about)


def nodes_table(shown: dict[str, Any], nodes: list[dict[str, Any]]) -> None:
    """One row per machine."""
    kit.section("Machines", f"agents connect to {shown['cluster']['address']}")
    rows = [
        (
            dot_label(node["node"], NODE_TONES[node["state"]]),
            f"<code>{kit.escape(node['address'])}</code>",
            kit.escape(node["state"]),
            kit.count(len(node["gateways"])),
            kit.seconds(node["behind_s"]),
            kit.bytes_text(node["at_risk_bytes"]) if node["at_risk_since"] is not None else kit.DASH,
            kit.count(node["n_restarts"]),
            kit.seconds(node["clock_off_s"]) if node["clock_off_s"] is None else f"{node['clock_off_s']:+.2f} s",
            f'<span class="q">{kit.escape(node_finding(node))}</span>',
        )
        for node in nodes
    ]
    if not rows:
        st.caption("No other machine has joined yet.")
        return
    head = ["Machine", "Address", "State", "Gateways", "Behind", "At risk", "Restarts", "Clock", "Finding"]
    html_table(head, rows, numeric=(3, 4, 5, 6, 7))


def node_finding(node: dict[str, Any]) -> str:
    """What is wrong with a machine and what to do, or an empty string."""
    if node["state"] == "gone":
        return f"If its disk is lost for good: claw-studio cluster forget {node['node']}"
    if node["state"] == "unreachable":
        return f"no answer for {kit.seconds(node['silent_s'])}; its gateways hold calls until it is back"
    return node["problem"] or ""


def gateways_table(shown: dict[str, Any], nodes: list[dict[str, Any]]) -> None:
    """One row per gateway of each machine."""
    gateways = [(HERE, one) for one in shown["gateways"]]
    gateways += [(node["node"], one) for node in nodes for one in node["gateways"]]
    kit.section("Gateways", "processes that agents call")
    rows = [
        (
            dot_label(one["gateway"], GATEWAY_TONES[one["state"]]),
            kit.escape(machine),
            kit.escape(one["state"]),
            str(one["port"] or kit.DASH),
            str(one["pid"] or kit.DASH),
            unshipped_text(one),
            kit.count(one["n_restarts"]),
            f'<span class="q">{kit.escape(one["journal_error"] or one["problem"] or "")}</span>',
        )
        for machine, one in gateways
    ]
    head = ["Gateway", "Machine", "State", "Port", "Process", "Not yet copied", "Restarts", "Finding"]
    html_table(head, rows, numeric=(3, 4, 5, 6))


def unshipped_text(gateway: dict[str, Any]) -> str:
    """What the journal's target has not confirmed of a gateway."""
    n_bytes, age_s = gateway["unshipped_bytes"], gateway["unshipped_s"]
    return f"{kit.bytes_text(n_bytes)}, {kit.seconds(age_s)}" if n_bytes else kit.bytes_text(n_bytes)


def writers_table(shown: dict[str, Any]) -> None:
    """One row per writer of another machine."""
    kit.section("Writers of other machines", "up to when their calls are here")
    rows = [
        (
            dot_label(one["writer"], WRITER_TONES[one["state"]]),
            kit.seconds(one["behind_s"]),
            f'<span class="q">{kit.escape(WRITER_STATES[one["state"]])}</span>',
        )
        for one in shown["writers"]
    ]
    if rows:
        html_table(["Writer", "Behind", "State"], rows, numeric=(1,))
    else:
        st.caption("None: all calls are written on this machine.")


def in_force(shown: dict[str, Any]) -> None:
    """Keys and weights."""
    kit.section("In force", "on every gateway, except those named")
    now = shown["in_force"]
    target = shown["journal_target"]
    kit.facts(
        [
            ("policy version", now["policy_version"]),
            ("weight sync", "in progress" if now["syncing"] else "none"),
            ("session keys", kit.count(now["n_keys"])),
            ("not applied yet by", ", ".join(now["unreachable"]) or "none"),
            ("a call is answered when it is", "on its gateway's disk" if target == "local" else f"also in {target}"),
        ]
    )


def how_to_start() -> None:
    """What a cluster is for, and how to start one."""
    with st.container(border=True, key="panel-start-cluster"):
        kit.section("One machine", "no cluster is running")
        st.markdown(
            "When rollouts need more machines, the studio puts a gateway on each node of a Ray cluster. Agents call "
            "`localhost` on their node, calls are copied to this pool, and keys and weights are in force everywhere. "
            "On the machine that gets the pool:"
        )
        st.code(START, language="bash")
        st.caption("More gateway processes on this machine: the setting `gateways`. The guide is docs/cluster.md.")


page_header("cluster")
live_part()
if state.service().cluster is None:
    how_to_start()
