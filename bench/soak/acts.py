"""Actions during the soak: labels, undos, leases, versions, exports, reads, SQL, retention, backups."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from bench.soak.traffic import HANG_S, Traffic

SFT = {"algorithm": "sft", "options": {"min_reward": None}, "require_complete": False}
FORMATS = ("openai_messages", "trl_sft", "steps_parquet", "slime")
EARLY = {404, 409, 422}
"""What came too early or twice is refused by name, which is no fault."""
HEAVY = ("backup", "retention", "restore")
N_HEAVY = 36
"""Times a run for all of them together."""
HEAVY_EVERY_S = 15.0
"""And no oftener than so."""
DRAIN_S = 900.0
PATIENCE_S = 3600.0
"""With what looks at everything: each step is read once more in the end."""
RESTS_S = 3500.0
"""A little less than what retention leaves alone."""


class Acts:
    """Everything but model calls, one after the other."""

    def __init__(self, traffic: Traffic, data: Path, seed: int) -> None:
        self.traffic, self.data = traffic, data
        self.draw = random.Random(seed)
        self.version = 0
        self.took_s: dict[str, list[float]] = {}
        self.readable_s: list[float] = []
        self.most_lag_s = 0.0
        light = {
            "label": 6, "feedback": 2, "fetch": 3, "freeze": 1, "export": 2, "steps": 2, "policy": 1, "plan": 2,
            "lists": 4, "one": 4, "where": 4, "sql": 2, "view": 1, "watch": 3,
        }  # fmt: skip
        self.light = [name for name, weight in light.items() for _ in range(weight)]

    async def run(self, rate: float, seconds: float, stopping: asyncio.Event) -> None:
        """So many a second, and in turn one of the heavy ones ``N_HEAVY`` times, evenly over the run."""
        heavy, every_s = itertools.cycle(HEAVY), max(seconds / N_HEAVY, HEAVY_EVERY_S)
        begun, n = time.monotonic(), 0
        due = begun + every_s
        while not stopping.is_set():
            await asyncio.sleep(max(begun + n / rate - time.monotonic(), 0))
            n += 1
            if not self.traffic.answered:
                continue
            name = self.draw.choice(self.light)
            if time.monotonic() >= due:
                name, due = next(heavy), due + every_s
            began = time.perf_counter()
            try:
                await getattr(self, name)(*self._some())
            except Exception as error:
                self.traffic.failed[f"{name} {error!r}"] += 1
            self.traffic.done[name] += 1
            self.took_s.setdefault(name, []).append(time.perf_counter() - began)

    async def each_once(self) -> None:
        """Run every act and every format once, so that modules they load are in memory before the measurement."""
        for name in (*dict.fromkeys(self.light), *HEAVY):
            await getattr(self, name)(*self._some())
        for name in FORMATS:
            await self.export(*self._some(), name)

    async def witness(self, every_s: float, stopping: asyncio.Event) -> None:
        """Measure again and again how long an answer takes until its step can be read."""
        while not stopping.is_set():
            await asyncio.sleep(every_s)
            if not self.traffic.answered:
                continue
            step_uid, _, answered_at = self.traffic.answered[-1]
            try:
                age = await self._readable(step_uid, answered_at)
                self.readable_s.append(age)
            except (TimeoutError, aiohttp.ClientError) as error:
                self.traffic.failed[f"a step that can't be read: {error!r}"] += 1

    async def _readable(self, step_uid: str, answered_at: float) -> float:
        """Seconds from the answer until its step was read. TimeoutError after ``HANG_S``."""
        while (age := time.monotonic() - answered_at) < HANG_S:
            async with self.traffic.http.get(f"{self.traffic.base}/api/v1/steps/{step_uid}") as response:
                if response.status == 200:
                    return age
            await asyncio.sleep(0.05)
        raise TimeoutError(f"not readable after {HANG_S:.0f} s")

    def _some(self) -> tuple[str, str]:
        """A step of the latest but not the very latest, and its trajectory where that has a name."""
        known = self.traffic.answered
        named = [known[self.draw.randrange(max(len(known) - 20, 1))] for _ in range(8)]
        step_uid, uid, _ = next((one for one in named if one[1]), named[0])
        return step_uid, uid

    async def say(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """One request; its JSON, or None where it was refused."""
        url = f"{self.traffic.base}/api/v1{path}"
        within = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with self.traffic.http.request(method, url, json=body, params=query, timeout=within) as response:
            if response.status == 200:
                return await response.json() if response.content_type == "application/json" else await response.read()
            if response.status not in EARLY:
                what = f"{method} /{path.split('/')[1]} {response.status} {(await response.text())[:160]}"
                self.traffic.failed[what] += 1
            return None

    async def label(self, step_uid: str, uid: str) -> None:
        """An opinion, half of the time undone, and redone half of those times."""
        kind, value = self.draw.choice([("reward", 0.5), ("quality", "good"), ("trainable", True), ("tag", "seen")])
        one = {"target": {"step_uid": step_uid}, "kind": kind, "value": value}
        response = await self.say("POST", "/annotations", {"annotations": [one]})
        if response is not None and self.draw.random() < 0.5:
            await self.say("POST", f"/actions/{response['action_uid']}/undo")
            if self.draw.random() < 0.5:
                await self.say("POST", f"/actions/{response['action_uid']}/redo")

    async def feedback(self, step_uid: str, uid: str) -> None:
        """Of a user of the agent."""
        await self.say("POST", "/feedback", {"kind": "thumbs", "value": "up", "step_uid": step_uid})

    async def fetch(self, step_uid: str, uid: str) -> None:
        """Lease a batch, renew it, and acknowledge it or give it back."""
        body = {"consumer": "soak", "recipe": {**SFT, "batch_size": 2}, "format": "file", "partial": True}
        leased = await self.say("POST", "/batches/fetch", {**body, **self._view(uid)})
        if leased is None or leased["batch_uid"] is None:
            return
        batch = f"/batches/{leased['batch_uid']}"
        await self.say("POST", f"{batch}/renew", {"consumer": "soak"})
        if self.draw.random() < 0.3:
            await self.say("POST", f"{batch}/release", {"consumer": "soak"})
        else:
            await self.say("GET", f"{batch}/file")
            await self.say("POST", f"{batch}/ack", {"consumer": "soak", "metrics": {"loss": 0.5}})

    async def freeze(self, step_uid: str, uid: str) -> None:
        """A dataset version, verified."""
        name = f"v-{self.traffic.n_calls}-{self.draw.randrange(1 << 30)}"
        if await self.say("POST", "/datasets", {"name": name, "recipe": SFT, **self._view(uid)}) is not None:
            await self.say("GET", f"/datasets/{name}/verify")

    async def export(self, step_uid: str, uid: str, name: str = "") -> None:
        """Files of one trajectory."""
        body = {"format": name or self.draw.choice(FORMATS), "recipe": SFT, **self._view(uid)}
        export = await self.say("POST", "/exports", body)
        if export is not None:
            await asyncio.to_thread(_delete, export["path"], export["manifest_path"])

    async def steps(self, step_uid: str, uid: str) -> None:
        """A step of white-box code."""
        name = f"soak-white-{self.draw.randrange(1 << 40)}"
        ids = [self.draw.randrange(1000) for _ in range(40)]
        one = {"trajectory_uid": name, "step_index": 0, "prompt_ids": ids, "response_ids": ids, "is_last": True}
        await self.say("POST", "/steps", {"steps": [{**one, "response_logprobs": [-0.1] * 40, "reward": 1.0}]})

    async def policy(self, step_uid: str, uid: str) -> None:
        """A weight sync."""
        self.version += 1
        for event in ("sync_started", "sync_finished"):
            await self.say("POST", "/policy", {"version": self.version, "event": event})

    async def plan(self, step_uid: str, uid: str) -> None:
        """What would be trained."""
        await self.say("POST", "/plans", {"recipe": SFT, **self._view(uid)})

    async def lists(self, step_uid: str, uid: str) -> None:
        """Two pages of the newest steps."""
        page = await self.say("GET", "/steps", limit="100", order="-created_at")
        if page is not None and page["next_cursor"]:
            await self.say("GET", "/steps", limit="100", order="-created_at", cursor=page["next_cursor"])

    async def one(self, step_uid: str, uid: str) -> None:
        """A step, its trajectory and its group."""
        step = await self.say("GET", f"/steps/{step_uid}")
        if step is not None:
            await self.say("GET", f"/trajectories/{step['trajectory_uid']}")
            await self.say("GET", f"/groups/{step['prompt_uid']}")

    async def where(self, step_uid: str, uid: str) -> None:
        """A condition."""
        condition = self.draw.choice(
            ["n_response_tokens > 40 AND transition = 'extends'", "reward > 0", "lower(agent) LIKE '%a%'"]
        )
        await self.say("GET", "/steps", where=condition, limit="50")

    async def sql(self, step_uid: str, uid: str) -> None:
        """A query of the console."""
        await self.say("POST", "/sql", {"sql": "SELECT channel, count(*) FROM step_state GROUP BY ALL"})

    async def view(self, step_uid: str, uid: str) -> None:
        """Save a view, read by it, forget it."""
        name = f"view-{self.draw.randrange(20)}"
        await self.say("PUT", f"/views/{name}", {"where": "reward > 0"})
        await self.say("GET", "/steps", view=name, limit="20")
        await self.say("DELETE", f"/views/{name}")

    async def watch(self, step_uid: str, uid: str) -> None:
        """Read health and metrics. Ingest may fall behind on a busy machine: this is not a failure."""
        stats = await self.say("GET", "/stats")
        await self.say("GET", "/metrics")
        if stats is not None:
            self.most_lag_s = max(self.most_lag_s, stats["ingest_lag_s"])
            for one in stats["problems"]:
                self.traffic.done[f"problem of {one['part']}"] += 1

    async def backup(self, step_uid: str, uid: str) -> None:
        """A copy while writing."""
        out = self.data.parent / f"backup-{self.traffic.n_calls}"
        await self.say("POST", "/backup", {"out": str(out)})
        await asyncio.to_thread(shutil.rmtree, out, ignore_errors=True)

    async def retention(self, step_uid: str, uid: str) -> None:
        """Delete trajectories to which nothing was added for an hour, and unneeded segments."""
        rule = {"older_than_days": 0.0}
        preview = await self.say("POST", "/retention", rule)
        if preview is not None:
            body = {**rule, "apply": True, "journal": True, "confirm": preview["confirm"]}
            await self.say("POST", "/retention", body)

    async def restore(self, step_uid: str, uid: str) -> None:
        """Put the newest run back, or empty the trash."""
        trash = await self.say("GET", "/trash")
        if trash is None or not trash["runs"]:
            return
        if self.draw.random() < 0.3:
            await self.say("POST", f"/trash/{trash['runs'][0]['run_uid']}/restore", {})
        else:
            await self.say("POST", "/trash/empty", {"confirm": trash["confirm"]})

    async def drained(self) -> tuple[float, dict[str, Any]]:
        """(seconds until all that was answered is in the pool, the counts then). TimeoutError after ``DRAIN_S``."""
        began = time.monotonic()
        while (took := time.monotonic() - began) < DRAIN_S:
            stats = await self.say("GET", "/stats")
            if stats["ingest_lag_s"] == 0:
                return took, dict(stats)
            await asyncio.sleep(0.5)
        raise TimeoutError(f"ingest did not catch up within {DRAIN_S:.0f} s")

    async def lost(self) -> int:
        """How many of the calls that were answered within the last hour, which no retention touches, are not there."""
        since = time.monotonic() - RESTS_S
        uids = [uid for uid, at in self.traffic.all_answered if at > since]
        n_known = 0
        for at in range(0, len(uids), 50_000):
            n_known += len((await self.say("POST", "/steps/known", {"step_uids": uids[at : at + 50_000]}))["known"])
        return len(uids) - n_known

    async def anonymous(self) -> dict[str, Any]:
        """Of the open conversations without identity: how many were split, or joined with others.

        ``split_steps`` has the steps of those that were split, to find out why. ``split_after_retention`` counts those
        with a pause so long that retention may have deleted their first part: what follows is a trajectory of its own
        then, also when the first part is restored.
        """
        owner: dict[str, str] = {}
        stored: dict[str, dict[str, Any]] = {}
        cursor: dict[str, str] = {}
        while True:
            where = "identity_source = 'inferred'"
            page = await self.say("GET", "/steps", where=where, limit="1000", **cursor)
            owner |= {step["step_uid"]: step["trajectory_uid"] for step in page["steps"]}
            stored |= {step["step_uid"]: step for step in page["steps"]}
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
        # A plain text prompt does not show which answer it continues, so each such call is a separate attempt.
        talks = [one for one in self.traffic.free if one.dialect != "completions"]
        agents = [one.steps for one in talks if one.identity == "anonymous" and one.steps]
        names = [{owner[uid] for uid in steps if uid in owner} for steps in agents]
        n_agents = Counter(name for own in names for name in own)
        answered_at = dict(self.traffic.all_answered)
        split = [steps for steps, own in zip(agents, names, strict=True) if len(own) > 1]

        def paused(steps: list[str]) -> bool:
            pairs = itertools.pairwise(answered_at[uid] for uid in steps)
            return any(later - earlier > RESTS_S for earlier, later in pairs)

        unexplained = [steps for steps in split if not paused(steps)]
        kept = ("step_uid", "trajectory_uid", "dialect", "status", "transition", "call_kind", "created_at")
        return {
            "agents": len(agents),
            "split": len(unexplained),
            "split_after_retention": len(split) - len(unexplained),
            "joined": sum(n > 1 for n in n_agents.values()),
            "split_steps": [
                [{name: stored[uid].get(name) for name in kept} for uid in steps if uid in stored]
                for steps in unexplained
            ],
        }

    def _view(self, uid: str) -> dict[str, Any]:
        return {"view": {"where": f"trajectory_uid = '{uid}'"}}


def _delete(*paths: str) -> None:
    for path in map(Path, paths):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
