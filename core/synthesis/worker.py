"""The supervisor of a run, as a process: it works on the run, and stops after the calls in flight when its input ends.

    python -m core.synthesis.worker --data FOLDER --run RUN --studio http://127.0.0.1:8100 [--until STAGE]

Key and certificate of the studio come from its settings. Exit code 0 when the run is finished, was stopped, or spent
its budget; 1 with the reason on stderr otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from core.client import StudioClient, trusting
from core.config import Settings
from core.errors import StudioError
from core.rollouts.worker import await_end_of_input
from core.synthesis.engines import gateway_embed, gateway_engines
from core.synthesis.store import SynthesisStore
from core.synthesis.work import work


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(description="Works on a run of the synthesis.")
    parser.add_argument("--data", type=Path, required=True, help="data folder of the studio")
    parser.add_argument("--run", required=True, help="uid of the run")
    parser.add_argument("--studio", required=True, help="root URL of the studio")
    parser.add_argument("--until", help="last stage to work on")
    parser.add_argument(
        "--budget", default="{}", help="JSON: max_calls, max_total_tokens, max_usd in place of the run's"
    )
    options = parser.parse_args(argv)
    stopping = threading.Event()
    threading.Thread(target=await_end_of_input, args=(stopping,), daemon=True, name="end-of-input").start()
    where = Settings(data_dir=options.data)
    tls = None if where.tls_cert is None else trusting(where.tls_cert)
    studio = StudioClient(options.studio, api_key=where.api_key, tls=tls)
    try:
        run = SynthesisStore(where.synthesis_dir).get(options.run)
        work(
            run,
            gateway_engines(run.settings, studio, tls),
            embed=gateway_embed(run.settings, studio),
            until=options.until,
            budget=json.loads(options.budget),
            should_stop=stopping.is_set,
        )
    except StudioError as failure:
        hint = f" ({failure.hint})" if failure.hint else ""
        print(f"{failure.message}{hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
