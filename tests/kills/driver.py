"""Traffic, opinions and kills in random order against a real service; every choice comes from one seed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx

from tests.batch.keeping_all import SFT_ALL
from tests.conftest import ServeProcess, eventually
from tests.kills.actors import GONE, Caller, Engine, Served, serve
from tests.kills.model import Label, Promised
from tests.kills.nursery import Nursery
from tests.processes import gateway_workers

SITE = Path(__file__).parent / "site"
ROOT = Path(__file__).parents[2]
POINTS = [(point, when) for point in ("sync", "rename", "commit", "reply") for when in ("before", "after")]
SFT = {**SFT_ALL, "require_complete": False}
N_CALLERS = 3
OPERATIONS = ("label", "label", "undo", "complete", "fetch", "settle", "freeze", "export")
RENAMING = ("export",) * 12
"""Operations at whose end files are renamed."""
STUMBLES = (0, 0, 1, 2, 4)
"""The service is killed so often on its way up before a round."""
AS_A_USER = 0.05
"""Share of the rounds whose service is started by a command of its own."""
MOST = {"sync": 20, "rename": 2, "commit": 10, "reply": 20}
"""The how many-th of a point is up to this: few renames are made, and some commits belong to the start itself."""
FIRES_WITHIN_S = 6.0


@dataclass(frozen=True, slots=True)
class Aim:
    """Who ends in a round, and at which moment: before or after the ``n``-th ``point``. No point: at random."""

    role: str = "owner"
    point: str = ""
    when: str = ""
    n: int = 0


class Run:
    """Rounds of one studio's life: each ends with the end of its process.

    Args:
        folder: for the data and the engine's script.
        gateways: gateway processes beside the main process.
        seed: of every choice.
        nursery: which starts the processes; its own where none is given.
    """

    studio: ServeProcess
    mark: Path
    aim: Aim

    def __init__(self, folder: Path, *, gateways: int, seed: int, nursery: Nursery | None = None) -> None:
        self.data = folder / "data"
        self.gateways = gateways
        self.draw = random.Random(seed)
        self.promised = Promised()
        self.own_nursery = Nursery() if nursery is None else None
        self.nursery = nursery or cast(Nursery, self.own_nursery)
        self.engine = Engine(folder, self.nursery)
        self.kills: Counter[str] = Counter()
        self.n_ops = 0
        self.number = 0
        self.callers: list[Caller] = []
        self.fired = self.engine_ended = False
        self.marks = folder / "marks"
        self.marks.mkdir()
        self.exports = self.data / "exports"
        self.start_s: list[float] = []

    @property
    def n_kills(self) -> int:
        """So far."""
        return self.kills.total()

    @property
    def n_answered(self) -> int:
        """Calls whose answer reached their caller, over all rounds."""
        return sum(map(len, self.promised.calls.values()))

    def round(self) -> None:
        """Start the service, compare it with what was promised, use it, kill parts of it and at last the whole."""
        aim = self._aim()
        for _ in range(self.draw.choice(STUMBLES)):
            self.stumble()
        if not self.begin(aim):
            return
        try:
            self._use(aim)
        finally:
            self.end(aim.role)

    def stumble(self) -> None:
        """Start the service and kill it on its way: while it reads logs, opens the pool or begins to listen."""
        env = {"CLAW_STUDIO_GATEWAYS": str(self.gateways)}
        child = serve(self.nursery, self.data, self.engine.base_url, env)
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(self.draw.uniform(0, 1) * (self.start_s or [1.0])[-1])
            raise AssertionError(f"round {self.number}: the service ended with {code} at its start")
        child.kill()
        child.wait()
        child.stdout.close()
        self.kills["owner at its start"] += 1

    def begin(self, aim: Aim) -> bool:
        """Start the service and compare it with what was promised; False when it was killed at its start."""
        self.number += 1
        self.aim, self.fired, self.engine_ended = aim, False, False
        self.mark = self.marks / str(self.number)
        path = os.pathsep.join([str(SITE), os.environ.get("PYTHONPATH", str(ROOT))])
        env = {"CLAW_STUDIO_GATEWAYS": str(self.gateways), "PYTHONPATH": path, "CLAW_KILL_DONE": str(self.mark)}
        if aim.point:
            env["CLAW_KILL"] = f"{aim.role}/{aim.point}/{aim.when}/{aim.n}"
        began = time.monotonic()
        self.callers = []
        try:
            self.studio = self._start(env)
        except AssertionError:
            # It was killed at its start, which is what was wanted.
            assert self.note_fired(), f"round {self.number}: the service did not start"
            return False
        self.start_s.append(time.monotonic() - began)
        try:
            self._compare()
            for one in range(N_CALLERS):
                self.callers.append(Caller(self.studio.base_url, self.number, f"r{self.number}c{one}"))
                self.callers[-1].start()
        except BaseException:
            self.end(aim.role)
            raise
        return True

    def _compare(self) -> None:
        """With what was promised, again where a gateway process ended meanwhile; the service's end leaves it undone."""
        self.studio.http.timeout = httpx.Timeout(120)
        while not self.ended:
            with contextlib.suppress(httpx.TransportError):
                self.promised.check(self.studio.http, self.exports, rounds=[self.number - 1], last=6)
                return
            time.sleep(0.05)

    @property
    def ended(self) -> bool:
        """Whether the service's own process is gone."""
        return self.studio.process.poll() is not None

    def note_fired(self) -> bool:
        """Whether the point that is aimed at was met, which counts once."""
        if not self.fired and self.mark.exists():
            self.fired = True
            self.kills[f"{self.aim.role} {self.aim.when} {self.aim.point}"] += 1
        return self.fired

    def end(self, role: str) -> None:
        """Kill what still runs, of the engine only with role all, and take down what was answered."""
        self.note_fired()
        if not self.ended:
            # A worker's end, or a point that was not met in time, is followed by the end of the rest.
            workers = gateway_workers(self.studio.process.pid)
            self.studio.process.kill()
            self.kills["all at random" if role == "all" else "owner at random"] += 1
            if role == "all":
                for pid in workers:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                self.engine.kill()
                self.engine.start()
                self.engine_ended = True
        self.studio.kill()
        self._take_down()

    def stop(self) -> None:
        """SIGTERM: the service ends in order."""
        self.note_fired()
        self.studio.http.close()
        self.studio.process.terminate()
        code = self.studio.process.wait(60)
        assert code == 0 or self.note_fired(), f"round {self.number}: the service ended with {code}"
        self._take_down(stopped=True)

    def _take_down(self, *, stopped: bool = False) -> None:
        for caller in self.callers:
            caller.stopping.set()
        for caller in self.callers:
            caller.join(40)
        answered = self.promised.calls.setdefault(self.number, {})
        for caller in self.callers:
            assert not caller.is_alive()
            if caller.doubled or answered.keys() & caller.answered.keys():
                self.promised.note(f"round {self.number}: two calls were answered under one uid")
            answered.update(caller.answered)
            allowed = GONE if self.engine_ended or stopped or self.gateways > 0 else set()
            for status in caller.refused.keys() - allowed:
                self.promised.note(f"round {self.number}: a living service answered {status}")

    def _start(self, env: dict[str, str]) -> ServeProcess:
        """Now and then as a user does, else by a fork: imports are most of a start."""
        if self.draw.random() < AS_A_USER:
            return ServeProcess(self.data, self.engine.base_url, env=env)
        return Served(self.nursery, self.data, self.engine.base_url, env=env)

    def close(self) -> None:
        """End what still runs."""
        self.engine.process.stop()
        if self.own_nursery is not None:
            self.own_nursery.close()

    def finish(self) -> dict[str, Any]:
        """Start it once more and compare everything."""
        env = {"CLAW_STUDIO_GATEWAYS": str(self.gateways)}
        studio = ServeProcess(self.data, self.engine.base_url, env=env)
        try:
            eventually(lambda: studio.http.get("/api/v1/stats").json()["n_steps"] >= self.n_answered)
            everything = max(len(self.promised.labels), len(self.promised.completions), len(self.promised.leases), 1)
            self.promised.check(studio.http, self.exports, rounds=list(self.promised.calls), last=everything)
            stats = studio.http.get("/api/v1/stats").json()
            if stats["n_dropped"]:
                self.promised.note(f"{stats['n_dropped']} calls were dropped")
        finally:
            code = studio.stop()
        assert code == 0
        return {
            "kills": self.n_kills,
            "by": dict(sorted(self.kills.items())),
            "answered": self.n_answered,
            "ops": self.n_ops,
            "labels": len(self.promised.labels),
            "completions": len(self.promised.completions),
            "leases": len(self.promised.leases),
            "versions": len(self.promised.versions),
            "exports": len(self.promised.exports),
            "lost": len(self.promised.lost),
        }

    def _aim(self) -> Aim:
        roles = ["owner", "owner", "all"] if self.gateways == 0 else ["owner", "all", "worker", "worker"]
        role = self.draw.choice(roles)
        if role == "all" or self.draw.random() < 0.3:
            return Aim(role)
        point, when = self.draw.choice(POINTS)
        if role == "worker" and point in ("rename", "commit"):
            point = self.draw.choice(["sync", "reply"])
        return Aim(role, point, when, self.draw.randint(1, MOST[point]))

    def _use(self, aim: Aim) -> None:
        """Ask for things until the end."""
        until = time.monotonic() + (FIRES_WITHIN_S if aim.point else self.draw.uniform(0.1, 1.2))
        while time.monotonic() < until and not self.ended:
            if aim.point and not self.fired and self.note_fired():
                until = min(until, time.monotonic() + 0.5)
            self.ask(more=RENAMING if aim.point == "rename" and not self.fired else ())
            if self.draw.random() < 0.06:
                self.kill_engine()
            elif self.draw.random() < 0.25:
                self.kill_worker()

    def kill_engine(self) -> None:
        """Now; it is back after one operation."""
        self.engine.kill()
        self.kills["engine at random"] += 1
        self.engine_ended = True
        self.ask()
        self.engine.start()

    def kill_worker(self) -> None:
        """One of several gateway processes, which its owner replaces."""
        workers = gateway_workers(self.studio.process.pid) if self.gateways > 0 else []
        with contextlib.suppress(ProcessLookupError):
            if workers:
                os.kill(self.draw.choice(workers), signal.SIGKILL)
                self.kills["worker at random"] += 1

    def ask(self, what: str | None = None, *, more: Sequence[str] = ()) -> None:
        """One operation, of those in ``more`` more often; a lost reply leaves it undecided."""
        self.n_ops += 1
        what = what or self.draw.choice([*OPERATIONS, *more])
        with contextlib.suppress(httpx.TransportError):
            getattr(self, f"_{what}")(self.studio.http)

    def _done(self, answer: httpx.Response) -> dict[str, Any] | None:
        """What was said; None where the owner was away (through a worker)."""
        if answer.status_code in GONE and self.gateways > 0:
            return None
        assert answer.status_code == 200, f"{answer.request.url}: {answer.status_code} {answer.text[:500]}"
        body: dict[str, Any] = answer.json()
        return body

    def _fresh_step(self) -> str | None:
        """A step of an earlier round that no label is about."""
        labelled = {label.step_uid for label in self.promised.labels}
        for number in range(self.number - 1, max(self.number - 4, 0), -1):
            left = sorted(self.promised.calls.get(number, {}).keys() - labelled)
            if left:
                return self.draw.choice(left)
        return None

    def _fresh_trajectory(self) -> str | None:
        for number in range(self.number - 1, max(self.number - 4, 0), -1):
            questions = self.promised.calls.get(number, {}).values()
            uids = {f"{line.split()[0]}-{int(line.split()[2]) // 3}" for line in questions}
            left = sorted(uids - self.promised.completions.keys())
            if left:
                return self.draw.choice(left)
        return None

    def _label(self, http: httpx.Client) -> None:
        step_uid = self._fresh_step()
        if step_uid is None:
            return
        label = Label(step_uid, round(self.draw.uniform(-1, 1), 6))
        self.promised.labels.append(label)
        body = {"target": {"step_uid": step_uid}, "kind": "reward", "value": label.value}
        response = self._done(http.post("/api/v1/annotations", json={"annotations": [body]}))
        if response is not None:
            label.action_uid, label.state = response["action_uid"], "on"

    def _undo(self, http: httpx.Client) -> None:
        known = [one for one in self.promised.labels[-20:] if one.action_uid and one.state != "unknown"]
        if not known:
            return
        label = self.draw.choice(known)
        word, after = ("undo", "off") if label.state == "on" else ("redo", "on")
        label.state = "unknown"
        if self._done(http.post(f"/api/v1/actions/{label.action_uid}/{word}")) is not None:
            label.state = after

    def _complete(self, http: httpx.Client) -> None:
        uid = self._fresh_trajectory()
        if uid is None:
            return
        reward = round(self.draw.uniform(-1, 1), 6)
        self.promised.completions[uid] = (reward, False)
        response = self._done(http.post(f"/api/v1/trajectories/{uid}/complete", json={"reward": reward}))
        if response is not None:
            self.promised.completions[uid] = (reward, True)

    def _fetch(self, http: httpx.Client) -> None:
        """A new batch, or the one whose reply was lost, asked for again under its own name."""
        open_ones = [name for name, lease in self.promised.leases.items() if lease["batch_uid"] is None]
        request_id = open_ones[0] if open_ones else f"q{len(self.promised.leases)}"
        nothing: dict[str, Any] = {"batch_uid": None, "state": "unknown", "trajectories": []}
        self.promised.leases.setdefault(request_id, nothing)
        recipe = {**SFT, "batch_size": 1}
        body = {"consumer": "trainer", "request_id": request_id, "recipe": recipe, "format": "file", "lease_s": 86400.0}
        response = self._done(http.post("/api/v1/batches/fetch", json=body))
        if response is None:
            return
        if response["batch_uid"] is None:
            del self.promised.leases[request_id]
            return
        uids = [one["trajectory_uid"] for group in response["groups"] for one in group["trajectories"]]
        leased = {"batch_uid": response["batch_uid"], "state": "leased", "trajectories": uids}
        self.promised.leases[request_id] = leased

    def _settle(self, http: httpx.Client) -> None:
        held = [one for one in self.promised.leases.values() if one["state"] == "leased"]
        if not held:
            return
        lease = self.draw.choice(held)
        word, after = self.draw.choice([("ack", "acked"), ("release", "released")])
        lease["state"] = "unknown"
        answer = http.post(f"/api/v1/batches/{lease['batch_uid']}/{word}", json={"consumer": "trainer"})
        if self._done(answer) is not None:
            lease["state"] = after

    def _body(self) -> dict[str, Any]:
        return {"view": {"where": f"prompt_uid = 'round-{self.number - 1}'"}, "recipe": SFT}

    def _freeze(self, http: httpx.Client) -> None:
        if not self.promised.calls.get(self.number - 1):
            return
        name = f"v{self.number}-{self.n_ops}"
        self.promised.versions[name] = None
        response = self._done(http.post("/api/v1/datasets", json={"name": name, **self._body()}))
        if response is not None:
            self.promised.versions[name] = response["content_hash"]

    def _export(self, http: httpx.Client) -> None:
        if not self.promised.calls.get(self.number - 1):
            return
        response = self._done(http.post("/api/v1/exports", json={"format": "openai_messages", **self._body()}))
        if response is not None:
            self.promised.exports.add(response["path"])
