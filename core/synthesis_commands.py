"""Commands of ``claw-studio synthesise``: make task packs with models, inspect and correct every stage."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from core.client import StudioClient
from core.errors import InvalidInput
from core.printable import print_json, printable

Connect = Callable[[Path | None], AbstractContextManager[StudioClient]]
Folder = Callable[[Path | None], Path]
DataOption = Annotated[Path | None, typer.Option(help="Data folder")]
RunArgument = Annotated[str, typer.Argument(help="Name of the run")]
StageArgument = Annotated[str, typer.Argument(help="Stage")]
RowArgument = Annotated[str, typer.Argument(help="Row")]
UntilOption = Annotated[str | None, typer.Option(help="Stop after this stage, to look at its rows first")]
CallsOption = Annotated[int | None, typer.Option(min=1, help="Most calls of the run")]
TokensOption = Annotated[int | None, typer.Option(min=1, help="Most tokens of the run, prompts and answers")]
UsdOption = Annotated[float | None, typer.Option(help="Most US dollars of the run")]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable")]


def synthesis_app(connect: Connect, data_folder: Folder) -> typer.Typer:
    """The commands. ``connect`` opens a client of the service, ``data_folder`` finds the data folder."""
    app = typer.Typer(help="Make task packs with models; every stage can be inspected.", no_args_is_help=True)

    def store(data: Path | None) -> Any:
        from core.synthesis import SynthesisStore

        return SynthesisStore(data_folder(data) / "synthesis")

    @app.command("start")
    def start(
        model: Annotated[str, typer.Option(help="Model that writes tasks and checkers")],
        tasks: Annotated[int, typer.Option(min=1, help="Tasks to begin; fewer reach the pack")] = 10,
        route: Annotated[str, typer.Option(help="persona or skill")] = "persona",
        run: Annotated[str | None, typer.Option(help="Name of the run; by default the time")] = None,
        seeds: Annotated[Path | None, typer.Option(help="Folder of seed lists; by default the shipped ones")] = None,
        skills: Annotated[Path | None, typer.Option(help="Folder of skill folders, for the skill route")] = None,
        judge: Annotated[str, typer.Option(help="Model of the judge; by default --model")] = "",
        solver: Annotated[str, typer.Option(help="Model of the reference solutions; by default --model")] = "",
        embedding: Annotated[str, typer.Option(help="Model whose vectors are compared for novelty; else words")] = "",
        prompts: Annotated[Path | None, typer.Option(help="Folder with changed prompts, NAME.txt")] = None,
        seed: Annotated[int, typer.Option(help="Seed of the sampling")] = 0,
        workers: Annotated[int, typer.Option(min=1, help="Rows at a time")] = 4,
        temperature: Annotated[float | None, typer.Option(help="Of sampling; by default the engine's")] = None,
        max_calls: CallsOption = None,
        max_tokens: TokensOption = None,
        max_usd: UsdOption = None,
        min_mutation_score: Annotated[float, typer.Option(help="Lowest share of mutants that score below")] = 0.5,
        min_difficulty: Annotated[int, typer.Option(min=0, max=5, help="Lowest difficulty; 0: any")] = 0,
        check_runs: Annotated[int, typer.Option(min=1, help="Runs of a checker, to find scores that change")] = 10,
        isolation: Annotated[str, typer.Option(help="Lowest level of isolation of the sandboxes")] = "process",
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Only estimate calls, tokens and money")] = False,
        until: UntilOption = None,
        data: DataOption = None,
    ) -> None:
        """Create a run and work on it. Ctrl-C stops it; resume goes on."""
        from core.sandbox import parse_level
        from core.synthesis import SynthesisSettings
        from core.synthesis.estimate import estimate
        from core.synthesis.templates import read_templates

        now = time.time()
        settings = SynthesisSettings(
            run=run or f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(2)}",
            route=route,
            model=model,
            n_tasks=tasks,
            created_at=now,
            judge_model=judge,
            solver_model=solver,
            embedding_model=embedding,
            seeds=str(seeds.absolute()) if seeds else "",
            skills=str(skills.absolute()) if skills else "",
            seed=seed,
            workers=workers,
            temperature=temperature,
            max_calls=max_calls,
            max_total_tokens=max_tokens,
            max_usd=max_usd,
            min_mutation_score=min_mutation_score,
            min_difficulty=min_difficulty,
            n_runs=check_runs,
            isolation=parse_level(isolation),
        )
        if dry_run:
            print_json(estimate(settings))
            return
        changed = {} if prompts is None else {name: one.text for name, one in read_templates(prompts).items()}
        made = store(data).create(settings, changed)
        with connect(data) as client:
            _work(made, client, until, {})

    @app.command("resume")
    def resume(
        run: RunArgument,
        until: UntilOption = None,
        max_calls: CallsOption = None,
        max_tokens: TokensOption = None,
        max_usd: UsdOption = None,
        data: DataOption = None,
    ) -> None:
        """Go on with a run. Nothing that is stored is asked for again. A budget here replaces that of the run."""
        budget = {"max_calls": max_calls, "max_total_tokens": max_tokens, "max_usd": max_usd}
        stored = store(data).get(run)
        with connect(data) as client:
            _work(stored, client, until, {name: one for name, one in budget.items() if one is not None})

    @app.command("list")
    def list_(data: DataOption = None) -> None:
        """Print one line of JSON per run, newest first."""
        from core.synthesis import progress

        for one in store(data).all():
            state = progress(one)
            print_json({"run": one.settings.run, "route": one.settings.route, "state": state.state})

    @app.command("show")
    def show(
        run: RunArgument,
        stage: Annotated[str | None, typer.Option(help="Print the rows of this stage")] = None,
        row: Annotated[str | None, typer.Option(help="Print this row of the stage with its product, as JSON")] = None,
        json_: JsonOption = False,
        data: DataOption = None,
    ) -> None:
        """Print progress, or the rows of a stage with the reasons of those that failed."""
        from core.synthesis import progress
        from core.synthesis.routes import route_of

        stored = store(data).get(run)
        if stage is None:
            _print_progress(progress(stored).to_json(), json_)
            return
        route_of(stored.settings.route).stage(stage)
        state = stored.state()
        for one in state.of_stage(stage):
            if row is not None and one.key != row:
                continue
            decision = state.decisions.get((stage, one.key))
            if json_ or row is not None:
                print_json({**one.to_json(), "decision": decision})
            else:
                print(printable(f"{one.key:12} {one.state:7} {decision or '':9} {one.reason or ''}"))

    @app.command("accept")
    def accept(run: RunArgument, stage: StageArgument, row: RowArgument, data: DataOption = None) -> None:
        """Let a row go on that its stage refused."""
        store(data).get(run).decide(stage, row, "accepted")

    @app.command("reject")
    def reject(run: RunArgument, stage: StageArgument, row: RowArgument, data: DataOption = None) -> None:
        """Stop a row that its stage made."""
        store(data).get(run).decide(stage, row, "rejected")

    @app.command("edit")
    def edit(
        run: RunArgument,
        stage: StageArgument,
        row: RowArgument,
        file: Annotated[Path, typer.Argument(help="File with the new product, a JSON object")],
        data: DataOption = None,
    ) -> None:
        """Replace the product of a row. Later stages make theirs again when the run goes on."""
        try:
            product = json.loads(file.read_bytes())
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{file} can't be read: {error}", field="file", hint="a JSON object") from error
        if not isinstance(product, dict):
            raise InvalidInput(f"{file} is no JSON object", field="file", hint="show --row prints the product")
        store(data).get(run).edit(stage, row, product, now=time.time())

    @app.command("rerun")
    def rerun(
        run: RunArgument,
        stage: StageArgument,
        row: Annotated[str | None, typer.Argument(help="Row; by default all rows of the stage")] = None,
        data: DataOption = None,
    ) -> None:
        """Have rows made again when the run goes on, with new answers."""
        from core.synthesis.routes import route_of

        stored = store(data).get(run)
        route_of(stored.settings.route).stage(stage)
        stored.rerun(stage, row)

    @app.command("cancel")
    def cancel(run: RunArgument, data: DataOption = None) -> None:
        """Stop a run after the calls in flight."""
        store(data).get(run).cancel()

    @app.command("difficulty")
    def difficulty(run: RunArgument, json_: JsonOption = False, data: DataOption = None) -> None:
        """Print how often rollouts solve each task, and which tasks are solved by the same actions."""
        with connect(data) as client:
            tasks = client.call("GET", f"/api/v1/synthesis/{quote(run, safe='')}/difficulty", repeat=True)["tasks"]
        for one in tasks:
            if json_:
                print_json(one)
                continue
            rate = "-" if one["solve_rate"] is None else f"{one['solve_rate']:.2f}"
            same = f" same actions as {one['same_as']}" if one["same_as"] else ""
            print(printable(f"{one['task_id']:24} {rate:>5} of {one['n_scored']} scored{same}"))

    @app.command("pack")
    def pack(
        run: RunArgument,
        out: Annotated[Path, typer.Argument(help="New folder, or new .jsonl file for hub")],
        format: Annotated[str, typer.Option("--format", help="clawgym, hub, harbor; or stages: all stage files")] = (
            "clawgym"
        ),
        min_mutation_score: Annotated[float, typer.Option(help="Only checkers with at least this score")] = 0.0,
        max_flakiness: Annotated[float, typer.Option(help="Only checkers with at most this flakiness")] = 1.0,
        min_difficulty: Annotated[float, typer.Option(help="Only tasks of at least this difficulty")] = 0.0,
        min_solve_rate: Annotated[float, typer.Option(help="Only tasks that rollouts solve at least this often")] = 0.0,
        max_solve_rate: Annotated[float, typer.Option(help="Only tasks that rollouts solve at most this often")] = 1.0,
        distinct_behaviour: Annotated[
            bool, typer.Option("--distinct-behaviour", help="Without tasks that are solved by the same actions")
        ] = False,
        data: DataOption = None,
    ) -> None:
        """Write the tasks that passed every stage, or the files of all stages under ClawGym's names."""
        from core.packs import Pack, write_pack
        from core.synthesis.files import write_stage_files
        from core.synthesis.pack import Choice, pack_of

        stored = store(data).get(run)
        if format == "stages":
            print_json({"out": str(out), "files": write_stage_files(stored, out)})
            return
        choice = Choice(
            min_mutation_score, max_flakiness, min_difficulty, min_solve_rate, max_solve_rate, distinct_behaviour
        )
        if choice.needs_rollouts:
            # What agents did is in the pool, which the service owns.
            with connect(data) as client:
                body = {**asdict(choice), "dry_run": True}
                chosen = client.call("POST", f"/api/v1/synthesis/{quote(run, safe='')}/pack", body)["task_ids"]
            every = pack_of(stored)
            made = Pack(every.name, [every.by_id[one] for one in chosen], every.format)
        else:
            made = pack_of(stored, choice)
        notes = write_pack(made, out, format)
        print_json({"out": str(out), "tasks": len(made.tasks), "version": made.version, "notes": notes})

    return app


def _work(run: Any, client: StudioClient, until: str | None, budget: Mapping[str, Any]) -> None:
    from core.synthesis import FINISHED, progress, work
    from core.synthesis.engines import gateway_embed, gateway_engines

    settings = run.settings
    engines, embed = gateway_engines(settings, client), gateway_embed(settings, client)
    with _cancelled_by_interrupt(run):
        end = work(run, engines, embed=embed, until=until, budget=budget, report=_report)
    print_json({"run": run.settings.run, "end": end, **progress(run).to_json()})
    if end != FINISHED and until is None:
        raise typer.Exit(1)


@contextmanager
def _cancelled_by_interrupt(run: Any) -> Iterator[None]:
    """The first Ctrl-C stops the run after the calls in flight, the second at once."""
    import signal

    def cancel(number: int, frame: Any) -> None:
        run.cancel()
        signal.signal(signal.SIGINT, before)
        print("stopping after the calls in flight; Ctrl-C again stops at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _report(event: Mapping[str, Any]) -> None:
    if event["event"] == "row" and event["state"] == "failed":
        print(printable(f"{event['stage']} {event['key']}: {event['reason']}"), file=sys.stderr)


def _print_progress(state: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(state)
        return
    cost = f"{state['cost_usd']:.4f} US dollars, {state['n_unpriced']} calls without a price"
    print(printable(f"{state['state']}: {state['n_calls']} calls, {state['n_tokens']} tokens, {cost}"))
    for one in state["stages"]:
        counts = f"{one['n_done']} done, {one['n_failed']} failed, {one['n_waiting']} waiting"
        print(printable(f"{one['stage']:18} {counts}"))
    if state["eta_s"]:
        print(f"about {state['eta_s']:.0f} s to go")
