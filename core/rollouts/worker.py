"""The supervisor of a run, as a process: it works through the run and ends when its input does.

    python -m core.rollouts.worker --data FOLDER --run RUN --studio http://127.0.0.1:8100

Key and certificate of the studio come from its settings. Exit code 0 when nothing is left to do or the run was
cancelled; 1 with the reason on stderr otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import ssl
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from core.client import StudioClient, trusting
from core.config import Settings
from core.errors import StudioError
from core.harnesses import harness_of
from core.packs.library import PackLibrary
from core.rollouts.attempt import Outcome
from core.rollouts.attempting import Place
from core.rollouts.entrance import Entrance
from core.rollouts.runner import Runner
from core.rollouts.runs import RunStore
from core.rollouts.workspaces import WorkspaceStore
from core.sandbox import choose

N_RETRIES = 5


def work(
    where: Settings,
    run_uid: str,
    studio: StudioClient,
    *,
    workers: int | None = None,
    retry: Sequence[Outcome] = ("lost",),
    clock: Callable[[], float] = time.time,
    should_stop: Callable[[], bool] = lambda: False,
    tls: ssl.SSLContext | None = None,
) -> str | None:
    """Work through a run of a data folder; returns why it stopped before its end, or None.

    ``tls`` is the studio's TLS context: given, agents reach the gateway through ``core.rollouts.entrance``.

    Raises:
        StudioError: it can't begin: no such run, another process works on it, no program, no isolation as demanded.
    """
    run = RunStore(where.rollouts_dir).get(run_uid)
    settings = run.settings
    harness = harness_of(settings.harness, settings.command)
    program = harness.find()
    program = replace(program, readable=[*program.readable, *map(Path, settings.readable)])
    pack = PackLibrary(where.packs_dir).get(settings.pack_version)
    with run.writer() as writer, contextlib.ExitStack() as opened:
        entrance = None
        if tls is not None:
            url = urlsplit(studio.base_url)
            entrance = opened.enter_context(Entrance((url.hostname or "127.0.0.1", url.port or 443), tls)).address
        place = Place(
            run=run,
            tasks={task_id: pack.by_id[task_id] for task_id in settings.task_ids},
            harness=harness,
            program=program,
            layer=choose(settings.isolation),
            studio=studio,
            workspaces=WorkspaceStore(where.workspaces_dir),
            writer=writer,
            clock=clock,
            should_stop=should_stop,
            entrance=entrance,
        )
        runner = Runner(place, workers=workers or settings.workers, retry=retry)
        runner.run()
    return runner.error


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(description="Works through a run of rollouts.")
    parser.add_argument("--data", type=Path, required=True, help="data folder of the studio")
    parser.add_argument("--run", required=True, help="uid of the run")
    parser.add_argument("--studio", required=True, help="root URL of the studio")
    parser.add_argument("--workers", type=int, help="attempts at a time, instead of the run's")
    parser.add_argument("--retry", default="lost", help="outcomes whose attempts are made again, separated by commas")
    options = parser.parse_args(argv)
    stopping = threading.Event()
    threading.Thread(target=await_end_of_input, args=(stopping,), daemon=True, name="end-of-input").start()
    where = Settings(data_dir=options.data)
    secure = options.studio.startswith("https:")
    tls = trusting(where.tls_cert) if secure and where.tls_cert is not None else None
    studio = StudioClient(options.studio, api_key=where.api_key, tls=tls, n_retries=N_RETRIES)
    try:
        error = work(
            where,
            options.run,
            studio,
            workers=options.workers,
            retry=cast("Sequence[Outcome]", [one for one in options.retry.split(",") if one]),
            should_stop=stopping.is_set,
            tls=tls,
        )
    except StudioError as failure:
        hint = f" ({failure.hint})" if failure.hint else ""
        error = f"{failure.message}{hint}"
    if error is not None:
        print(error, file=sys.stderr)
    return 0 if error is None else 1


def await_end_of_input(stopping: threading.Event) -> None:
    """Set the event when the input ends: the process that started this one closed it, or was killed."""
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    while True:
        poll.poll()
        if not os.read(0, 1024):
            stopping.set()
            return


if __name__ == "__main__":
    sys.exit(main())
