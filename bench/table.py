"""The table of measurements in docs/benchmarks.md, from the committed results: ``python bench/table.py`` writes it.

Each row is one sentence of a result file, so that the page can't say another number than the benchmark did
(``tests/test_docs.py`` compares).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- measured -->\n", "<!-- /measured -->\n"

Row = tuple[str, str, str]


def load(name: str) -> dict[str, Any]:
    """One result file."""
    results: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return results


def busy_text(machine: Mapping[str, Any]) -> str:
    """The load of the machine when a run began."""
    return f"(load {machine['load_before']:.0f} on {machine['cpus']} cores)"


def gateway_rows() -> Iterator[Row]:
    """Capture beside peers, every call of ours on disk before its reply; and from reply to page."""
    results = load("gateway")
    machine = results["machine"]
    busy = busy_text(machine)
    for case in GATEWAY_CASES:
        rows = {name: one["cases"][case] for name, one in results["results"].items() if case in one["cases"]}
        ours = rows["claw-studio"]
        text = f"{ours['requests_per_s']:,.0f} requests/s, p50 {ours['p50_ms']:.1f} ms, p99 {ours['p99_ms']:.0f} ms"
        times = results["times_what_peers_do"][case]
        peers = ", ".join(
            f"{name} {rows[name]['requests_per_s']:,.0f} (1/{one['best']:.0f}; CPU {one['cpu_per_request']:.0f}×)"
            for name, one in times.items()
        )
        yield f"burst of one second, gateway without ingest and pool, {case} {busy}", text, peers
    added, sync = results["p50_added_ms"], machine["sync_8kb_ms"]
    yield (
        "added to a call at one connection",
        f"{added:.1f} ms, the sync of {sync:.1f} ms included",
        "the engine itself",
    )
    seen = load("visible")
    for mode in ("one gateway process", "two gateway processes", "gateway in the studio"):
        alone, watched = seen[mode]["at_rate"], seen[mode]["at_rate_with_the_collect_page"]
        yield (
            f"answer to readable step, {alone['calls_per_s']:.0f} calls/s, {mode} {busy_text(seen['machine'])}",
            readable(alone),
            f"with the Collect page open {readable(watched)}; without a limit "
            f"{seen[mode]['closed_loop_of_16']['share_left']:.0%} of the calls",
        )


def readable(run: dict[str, Any]) -> str:
    """A run at a fixed rate."""
    return f"p95 {run['reply_to_readable_s']['p95']:.2f} s, answers p99 {run['reply_ms']['p99']:.0f} ms"


def sustained_rows() -> Iterator[Row]:
    """The whole product under growing conversations, with its default settings, beside peers."""
    results = load("sustained")
    machine = results["machine"]
    for case, ours in results["results"]["claw-studio"].items():
        times = results["times_what_peers_do"][case]
        peers = ", ".join(
            f"{name} {results['results'][name][case]['requests_per_s']:,.0f} (1/{ratio:.1f}; CPU "
            f"{results['results'][name][case]['cpu_ms_per_call'] / ours['cpu_ms_per_call']:.1f}×)"
            for name, ratio in times.items()
        )
        busy = busy_text(machine)
        yield (
            f"whole product for {results['seconds']:.0f} s, {case} {busy}",
            f"{ours['requests_per_s']:,.0f} calls/s, p99 {ours['p99_ms']:.0f} ms, ingest "
            f"{ours['ingest_lag_s_at_the_end']:.1f} s behind at the end; until all is in the pool "
            f"{ours['calls_per_s_until_drained']:,.0f} calls/s, "
            f"{ours['cpu_ms_per_call']:.2f} ms of processor each",
            peers,
        )


def client_rows() -> Iterator[Row]:
    """The client for engines beside general ones."""
    result = load("http_client")
    for case, by in result["cases"].items():
        (_, ours), *others = by.items()
        peers = ", ".join(
            f"{name} {one['requests_per_s']:,.0f} (CPU {one['cpu_us_per_request'] / ours['cpu_us_per_request']:.0f}×)"
            for name, one in others
        )
        yield (
            f"HTTP client, answers of {case} (load {result['machine']['load_before']:.0f})",
            f"{ours['requests_per_s']:,.0f} requests/s, {ours['cpu_us_per_request']:.0f} µs of processor each",
            peers,
        )


GATEWAY_CASES = ("small, 1 connections", "small, 16 connections", "agentic, 16 connections")
"""Rows of the page for the gateway's cases."""


def tree_rows() -> Iterator[Row]:
    """Build and layout."""
    for name, case in load("tree")["cases"].items():
        peers = ", ".join(f"{peer} {one['build_is_faster_by']:.0f}×" for peer, one in case["peers"].items())
        ours = f"{case['build_s'] * 1e3:.1f} ms, {case['tokens_per_s'] / 1e6:,.0f} M tokens/s"
        ours += f", {case['memory']['build_over_copy']:.1f} × a copy of the ids"
        ours += f" ({case['build_deltas_s'] * 1e3:.1f} ms from the pool's deltas)"
        yield f"prefix tree, {name} tokens", ours, f"faster than {peers}"


def packing_rows() -> Iterator[Row]:
    """Packing under a budget, steps in shuffled order."""
    for name, case in load("packing")["cases"].items():
        ours, *others = case["shuffled"].items()
        peers = ", ".join(f"{peer} {one['tokens']:,} in {one['s']:.1f} s" for peer, one in others)
        best = f"{ours[1]['tokens']:,} tokens in {ours[1]['s'] * 1e3:.0f} ms"
        yield f"packing, {name}", f"{best} (none can do with less than {case['floor']:,})", peers


def step_rows() -> Iterator[Row]:
    """A training step over packed rows."""
    for name, case in load("tree_step")["cases"].items():
        step, memory = case["step_s"], case["memory_mib"]
        yield (
            f"training step, token ratio {name}, CPU",
            f"{step['packed']:.2f} s, {memory['packed']:.0f} MiB: {case['share_of_ideal']:.2f} of the ideal speed-up",
            f"unpadded {step['unpadded']:.2f} s, {memory['unpadded']:.0f} MiB; "
            f"padded {step['padded']:.2f} s, {memory['padded']:,.0f} MiB",
        )


POOL_CASES = (
    "facets: all 20 of a filtered view", "count: a filtered view", "page: filtered, any order",
    "page: deep in all, any order", "groups page: filtered", "trajectories page: filtered",
    "histogram: a filtered view",
    "one trajectory of 100 steps, tokens and messages", "text search: first page of a new word",
    "text search: pages, counts of a known word", "label one step or trajectory",
)  # fmt: skip
"""Rows of the page for the pool's cases."""


def pool_rows() -> Iterator[Row]:
    """The pool: a million steps, bytes on disk, lists."""
    results = load("pool")
    yield from _sized("1,000,000 steps", results["million"], POOL_CASES)
    if "ten million" in results:
        grown = results["ten million"]
        opened = grown["pool"]
        yield (
            f"10,000,000 steps, {opened['bytes'] / 1e9:.0f} GB: open; read ahead",
            f"{opened['open_ms'] / 1e3:,.1f} s; {opened['warm_ms'] / 1e3:,.0f} s",
            f"resident memory at most {grown['rss_mb']['peak']:,} MB, DuckDB's limit {grown['memory_limit']}",
        )
        plans = tuple(name for name in grown["cases"] if name.startswith("plan: "))
        yield from _sized("10,000,000 steps", grown, (*POOL_CASES, *plans))
    disk = results["disk"]
    raw, ours, journal, *others = disk["stores"].items()
    peers = [f"{name} {store['bytes'] / 1e6:,.0f} MB" for name, store in (raw, *others)]
    yield (
        f"disk, {disk['n_steps']:,} calls, contexts to {disk['tokens_at_the_end']:,} tokens",
        f"{ours[1]['bytes'] / 1e6:,.0f} MB, 1/{1 / ours[1]['share_of_json']:.0f} of the JSON"
        f" (journal {journal[1]['bytes'] / 1e6:,.0f} MB until retention)",
        "; ".join(peers),
    )
    lists = {name: listed for name, listed in results["lists"].items() if name != "n_steps"}
    (_, ours_listed), *peers_listed = lists.items()
    for name, case in ours_listed.items():
        beside = [f"{peer} p50 {theirs[name]['p50_ms']:,.0f} ms" for peer, theirs in peers_listed]
        yield f"{results['lists']['n_steps']:,} steps, {name}", f"p50 {case['p50_ms']:,.0f} ms", "; ".join(beside)


def _sized(size: str, results: Mapping[str, Any], names: Sequence[str]) -> Iterator[Row]:
    """The cases of a pool of one size."""
    cases, machine = results["cases"], results["machine"]
    waiting = max(machine["load_before"][0], machine["load_after"][0])
    busy = f"(load {waiting:.1f} on {machine['cpus']} cores)" if waiting > machine["cpus"] else ""
    bulk = [name for name in cases if name.startswith("bulk") and name.endswith(("label", "undo"))]
    for name in (*names, *bulk):
        case = cases[name]
        cpu = f", {case['cpu_p50_ms']:,.0f} ms of processor" if "cpu_p50_ms" in case else ""
        yield f"{size}, {name}", f"p50 {case['p50_ms']:,.0f} ms, p95 {case['p95_ms']:,.0f} ms{cpu}", busy


def ingest_rows() -> Iterator[Row]:
    """From the journal to the pool."""
    results = load("ingest")
    yield (
        f"ingest of calls of {results['record_bytes'] / 1e3:.0f} KB, {results['turns']} turns each agent",
        f"{results['calls_per_s']:,.0f} calls/s, {results['mb_per_s']:.0f} MB/s, {results['peak_rss_mb']} MB of memory",
        f"load {results['machine']['load_before']} before the run",
    )


def loop_rows() -> Iterator[Row]:
    """Completions, and an update of the learning demo."""
    results = load("completions")
    run, cases = results["run"], results["cases"]
    base = cases["without"]["seconds"]
    for name in ("one by one", "all at once"):
        yield (
            f"{run['trajectories']} × {run['calls']} calls and their completions, {name} "
            f"{busy_text(results['machine'])}",
            f"{cases[name]['seconds']:.2f} s, {cases[name]['times']:.2f} × the time without completions",
            f"without: {base:.2f} s",
        )
    update = load("update")
    used = update["processor_s"]
    yield (
        f"one update of the learning demo (load {update['load_at_start']:.0f} on {update['machine']['n_cores']} cores)",
        f"{update['seconds_median']:.1f} s, {update['processor_s_all']:.1f} s of processor, studio "
        f"{update['studio_share']:.0%}",
        ", ".join(f"{name} {used[name]:.1f} s" for name in ("engine", "agents", "trainer")),
    )


def rollout_rows() -> Iterator[Row]:
    """Attempts in sandboxes beside a loop without sandbox and studio, and the start of a sandbox."""
    results = load("rollouts")
    for name in (name for name, one in results.items() if name.startswith("engine ")):
        bare, ours = (
            statistics.median(one["attempts_per_minute"] for one in results[name][kind])
            for kind in ("bare_loop", "rollouts")
        )
        yield (
            f"rollouts of the demo agent, 8 at a time, isolation {results['isolation']}, {name}",
            f"{ours:.0f} attempts a minute",
            f"bare loop without sandbox and studio {bare:.0f} (overhead {results[name]['overhead']:.0%})",
        )
    at_once = results["64 at once"]
    yield (
        "rollouts of the demo agent, 64 at once, engine takes 1 s",
        f"{at_once['attempts_per_minute']:.0f} attempts a minute",
        "",
    )
    sandboxes = load("sandbox")
    plain = sandboxes["plain_process"]["wall_ms_median"]
    for level, one in sandboxes["levels"].items():
        yield (
            f"start and end of a process in a sandbox, level {level} ({one['layer']})",
            f"{one['run']['wall_ms_median']:.0f} ms; making and removing the sandbox "
            f"{one['make_and_remove']['wall_ms_median']:.0f} ms",
            f"a plain process {plain:.0f} ms",
        )


def cluster_rows() -> Iterator[Row]:
    """More machines: gateways, and a job of Ray Data."""
    runs = load("cluster-quota")
    times = [run["speed_up"] for run in runs["runs"]]
    costs = [run["cpu_per_call_ratio"] for run in runs["runs"]]
    yield (
        f"two gateways against one, each with {runs['quota']:g} of a processor",
        f"{min(times):.2f} to {max(times):.2f} × the calls; processor time of a call {min(costs):.2f} to "
        f"{max(costs):.2f} ×",
        "",
    )
    jobs = load("jobs")
    share = jobs["share"]
    for name, job in jobs["formats"].items():
        yield (
            f"`{name}` as a job of Ray Data, {jobs['parts']} parts, {jobs['n_tokens'] / 1e6:,.0f} M tokens: "
            f"two workers against one, each with {share['processors']:g} of a processor",
            f"{job['median_speed_up']:.2f} × as fast ({', '.join(f'{one:.2f}' for one in job['speed_up'])})",
            f"one process without Ray: {job['cpu_seconds_alone']:.1f} s of processor, the same bytes",
        )


def export_rows() -> Iterator[Row]:
    """Each format with a row a step, beside the trainer's own reading of the file."""
    results = load("export")
    busy = busy_text({"load_before": results["machine"]["load_at_start"], "cpus": results["machine"]["cpus"]})
    formats = {name: sizes["8 groups"] for name, sizes in results["formats"].items()}
    peer = formats["peer: datasets.from_list"]["mtokens_per_s"]
    yield f"export {busy}: Parquet by datasets.from_list, from lists", f"{peer:,.1f} M tokens/s", "the peer"
    for name, one in formats.items():
        # A row a trajectory has few tokens of its own, so tokens written say little of the speed.
        if "mtokens_per_s" not in one or not (name.endswith(" step") or name in ("rllm", "llama_factory")):
            continue
        loading = one["loading"]
        beside = f"read by {loading['how']}: {loading['mtokens_per_s']:,.0f}" if name != "llama_factory" else ""
        yield f"export, {name.removesuffix(' step')}", f"{one['mtokens_per_s']:,.0f} M tokens/s", beside


def start_rows() -> Iterator[Row]:
    """From the command to the first page."""
    results = load("start")
    median, machine = results["median"], results["machine"]
    yield (
        f"start with an empty pool, installed and warm {busy_text(machine)}",
        f"first page after {median['first_page_s']:.1f} s, {median['cpu_s']:.1f} s of processor",
        f"imports alone {results['imports']['all_ms'] / 1e3:.1f} s; "
        f"installed {results['installed_mb']['all'] / 1e3:.1f} GB",
    )


def table() -> str:
    """The markdown between the page's marks."""
    rows = [
        *sustained_rows(),
        *gateway_rows(),
        *client_rows(),
        *tree_rows(),
        *packing_rows(),
        *step_rows(),
        *pool_rows(),
        *export_rows(),
        *ingest_rows(),
        *loop_rows(),
        *rollout_rows(),
        *cluster_rows(),
        *start_rows(),
    ]
    lines = ["| what | measured | beside it, in the same run |", "|---|---|---|"]
    return "\n".join(lines + [f"| {what} | {ours} | {peers} |" for what, ours, peers in rows]) + "\n"


def main() -> None:
    """Write the table into the page."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(before + BEGIN + table() + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
