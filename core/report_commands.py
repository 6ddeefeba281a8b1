"""The command ``claw-studio report``. It sends requests to the service that owns the data folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from core.commands import Connect, DataOption
from core.errors import InvalidInput
from core.printable import print_json, printable


def add_report_to(app: typer.Typer, connect: Connect) -> None:
    """Register the command."""

    @app.command()
    def report(
        run: Annotated[str, typer.Argument(help="A run of rollouts")],
        other: Annotated[str | None, typer.Argument(help="A run to compare with it, task by task")] = None,
        data: DataOption = None,
        json_: Annotated[bool, typer.Option("--json", help="Machine-readable; by default Markdown")] = False,
        out: Annotated[Path | None, typer.Option(help="New file to write to, in place of the terminal")] = None,
        rewards: Annotated[
            str, typer.Option(help="current: re-scores, labels and reward policies count; run: the run's own scores")
        ] = "current",
        price_prompt: Annotated[float | None, typer.Option(help="US dollars for a million prompt tokens")] = None,
        price_response: Annotated[float | None, typer.Option(help="US dollars for a million sampled tokens")] = None,
    ) -> None:
        """Report on a run: mean, solved, pass@k, pass^k with intervals by task, time, tokens; or compare two runs."""
        if out is not None and out.exists():
            raise InvalidInput(f"{out} exists", field="out", hint="name a new file")
        prices = {"price_prompt": price_prompt, "price_response": price_response}
        query = {"rewards": rewards, **{name: value for name, value in prices.items() if value is not None}}
        path = f"/api/v1/reports/{quote(run, safe='')}"
        with connect(data) as client:
            if other is None:
                made = client.call("GET", path, query=query)
            else:
                made = client.call("GET", f"{path}/compare", query={**query, "with": other})
        text = made.pop("markdown")
        if out is not None:
            import json

            out.write_text(json.dumps(made, indent=2) + "\n" if json_ else text, encoding="utf-8")
        elif json_:
            print_json(made)
        else:
            print("\n".join(printable(line) for line in text.splitlines()))
