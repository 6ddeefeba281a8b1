"""Kills at named points and at random, with one and with three gateway processes, beside a model of what was promised.

``make test`` kills six times, ``make beyond`` fifty times or ``CLAW_KILLS`` times; ``CLAW_KILLS_SEED`` says which. A
run is replayed by its seed: who asks for what, who is killed, at which point and the how many-th of them follow from it
(the threads' turns do not).
"""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from tests.kills.driver import Run
from tests.left_out import only_in_ci

N_KILLS = int(os.environ.get("CLAW_KILLS", "50"))
SEED = int(os.environ.get("CLAW_KILLS_SEED", "7"))
MAX_ROUNDS = max(N_KILLS, 30)
many = pytest.param(N_KILLS, marks=() if "CLAW_KILLS" in os.environ else only_in_ci("fifty kills, some minutes"))


@pytest.mark.parametrize("gateways", [1, pytest.param(3, marks=only_in_ci("kills with three gateways"))])
@pytest.mark.parametrize("n_kills", [6, many])
def test_what_was_acknowledged_is_there_after_every_kill(n_kills: int, gateways: int, tmp_path: Path) -> None:
    with closing(Run(tmp_path, gateways=gateways, seed=SEED + gateways)) as run:
        # Kills without traffic prove nothing: it goes on until more calls were answered than rounds ended.
        while run.n_kills < n_kills // 2 or run.n_answered <= run.number:
            run.round()
            assert run.number < MAX_ROUNDS, f"seed {SEED}: {run.n_answered} calls were answered in {run.number} rounds"
            assert not run.promised.lost, f"seed {SEED}, round {run.number}: {run.promised.lost[:10]}"
        result = run.finish()
    print(json.dumps(result))
    assert not run.promised.lost, f"seed {SEED}: {run.promised.lost[:10]}"
