"""Which calls are one attempt, and which attempts are one task, against what the agents themselves know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.ingest import opentrajectories
from core.linking import Call, Continuation, TrajectoryLinks, continuation
from core.records import complete_record, register_record
from core.types import View
from tests.batch.keeping_all import SFT_ALL
from tests.effort import settings
from tests.ingest.recorded import TOOLS, Bench, call

SYSTEM = {"role": "system", "content": "be good"}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def with_(record: bytes, **changes: Any) -> bytes:
    return orjson.dumps({**orjson.loads(record), **changes})


def owners(bench: Bench) -> dict[str, str]:
    return {row["step_uid"]: row["trajectory_uid"] for row in bench.pool.steps.page(limit=None).to_pylist()}


def tasks(bench: Bench) -> dict[str, str]:
    return {row["step_uid"]: row["prompt_uid"] for row in bench.pool.steps.page(limit=None).to_pylist()}


def partition(names: dict[str, str]) -> set[frozenset[str]]:
    parts: dict[str, set[str]] = defaultdict(set)
    for uid, name in names.items():
        parts[name].add(uid)
    return {frozenset(uids) for uids in parts.values()}


@pytest.mark.parametrize("known", [False, True])
def test_examples_and_primers_join_neither_attempts_nor_tasks(bench: Bench, known: bool) -> None:
    """Two tasks behind the same few-shot turns, as dspy sends them, and behind the primer of Qwen Code."""
    shots = [user("2 + 2"), assistant("4"), user("3 + 3"), assistant("6")]
    primer = [user("This is the context. Today's date is ..."), assistant("Got it. Thanks for the context!")]
    for kind, before in (("shots", shots), ("primer", primer)):
        for task in ("a", "b"):
            for attempt in ("0", "1"):
                name = f"{kind}-{task}-{attempt}"
                talk = [SYSTEM, *before, user(f"task {task}")]
                uid = name if known else None
                bench.feed(call(f"{name}.1", talk, f"answer of {name}", tools=TOOLS, trajectory_uid=uid))
                talk = [*talk, assistant(f"answer of {name}"), user("go on")]
                bench.feed(call(f"{name}.2", talk, "done", tools=TOOLS, trajectory_uid=uid, at=1e9 + 9))
    uids = list(owners(bench))
    assert partition(owners(bench)) == partition({uid: uid.split(".")[0] for uid in uids})
    assert partition(tasks(bench)) == partition({uid: uid.rsplit("-", 1)[0] for uid in uids})
    assert {row["call_kind"] for row in bench.pool.steps.page(limit=None).to_pylist()} == {"main"}
    assert not any("uncertain" in row["findings"] for row in bench.pool.steps.page(limit=None).to_pylist())


@pytest.mark.parametrize("known", [False, True])
def test_self_consistency_keeps_every_sample(bench: Bench, known: bool) -> None:
    """dspy's ``n=2`` and majority votes: one prompt, asked and answered several times."""
    for number in range(5):
        bench.feed(call(f"s{number}", [SYSTEM, user("q")], f"a{number % 2}", trajectory_uid="t" if known else None))
    rows = bench.pool.steps.page(limit=None).to_pylist()
    assert {(row["call_kind"], row["trainable"]) for row in rows} == {("main", True)}
    assert len({row["prompt_uid"] for row in rows}) == 1
    assert len({row["trajectory_uid"] for row in rows}) == (1 if known else 5)


@pytest.mark.parametrize("uid", [None, "t"])
def test_the_prompts_of_a_batch_are_tasks_of_their_own(bench: Bench, uid: str | None) -> None:
    for attempt in ("x", "y"):
        record = orjson.loads(call(attempt, [], "upon", trajectory_uid=uid and f"{uid}{attempt}"))
        choices = [{"index": i, "text": f"c{i}", "finish_reason": "stop", "token_ids": [7]} for i in range(6)]
        record |= {"dialect": "completions", "engine_dialect": "completions", "response": {"choices": choices}}
        bench.feed(orjson.dumps({**record, "request": {"prompt": ["one", "two", [5, 6]], "n": 2}}))
    number = {uid: int(uid[2:] or 0) // 2 for uid in owners(bench)}
    assert partition(owners(bench)) == partition({uid: f"{uid[0]}{n}" for uid, n in number.items()})
    assert partition(tasks(bench)) == partition({uid: str(n) for uid, n in number.items()})
    assert {row["call_kind"] for row in bench.pool.steps.page(limit=None).to_pylist()} == {"main"}


def attempts(n: int, *, connections: bool = False, overlap: bool = False) -> list[bytes]:
    """Parallel attempts whose first answers are the same, as smolagents makes them: all first turns, then the rest."""
    first, second = [], []
    for number in range(n):
        at = 1e9 + (number * 0.3 if overlap else number)
        records = [
            call(f"{number}.1", [SYSTEM, user("task")], "look around", tools=TOOLS, at=at),
            call(
                f"{number}.2",
                [SYSTEM, user("task"), assistant("look around"), user(f"seen {number}")],
                "done",
                tools=TOOLS,
                at=at + 0.51 if overlap else at + 100,
            ),
        ]
        if connections:
            records = [with_(record, connection=f"127.0.0.1:{4000 + number}") for record in records]
        first.append(records[0])
        second.append(records[1])
    order = sorted([*first, *second], key=lambda record: orjson.loads(record)["finished_at"])
    return order if overlap else [*first, *second]


@pytest.mark.parametrize("how", ["connections", "overlap"])
def test_the_same_answers_of_parallel_attempts_are_told_apart(bench: Bench, how: str) -> None:
    bench.feed(*attempts(4, **{how: True}))
    if how == "connections":
        assert partition(owners(bench)) == {frozenset({f"{n}.1", f"{n}.2"}) for n in range(4)}
    else:
        assert sorted(map(len, partition(owners(bench)))) == [2] * 4
    assert not any("uncertain" in row["findings"] for row in bench.pool.steps.page(limit=None).to_pylist())


@pytest.mark.parametrize("restart", [False, True])
def test_where_nothing_tells_them_apart_the_plan_says_so(bench: Bench, restart: bool) -> None:
    for record in attempts(3):
        bench.feed(record)
        if restart:
            bench.restart()
    assert sorted(map(len, partition(owners(bench)))) == [2, 2, 2]
    rows = {row["step_uid"]: row for row in bench.pool.steps.page(limit=None).to_pylist()}
    assert {uid for uid, row in rows.items() if "uncertain" in row["findings"]} == {"0.2", "1.2", "2.2"}
    assert bench.pool.steps.get("1.2")["metadata"]["uncertain"].startswith("several attempts gave the same answers")
    assert {uid for uid, row in rows.items() if row["trainable"]} == {"0.1", "1.1", "2.1"}
    recipe = parse_recipe({**SFT_ALL, "require_complete": False})
    made = plan(bench.pool, View(), recipe)
    (out,) = made.excluded
    assert (out.reason, out.n_steps) == ("uncertain", 3)
    assert bench.pool.steps.count(out.view) == 3
    assert bench.pool.steps.count(View({"findings": ["uncertain"]})) == 3


def called(uid: str, path: str) -> dict[str, Any]:
    function = {"name": "read_file", "arguments": orjson.dumps({"path": path}).decode()}
    return {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"id": uid, "type": "function", "function": function}],
    }


@pytest.mark.parametrize("as_text", [False, True])
def test_drawn_call_ids_tell_attempts_apart(bench: Bench, as_text: bool) -> None:
    """The same answers in parallel; as smolagents sends them, the calls stand in the text."""
    ids = [f"call_{n}f3a9c01d7e" for n in range(3)]
    for n, uid in enumerate(ids):
        bench.feed(call(f"{n}.1", [SYSTEM, user("task")], called(uid, "a.txt"), tools=TOOLS, at=1e9 + n))
    for n, uid in reversed(list(enumerate(ids))):
        made = called(uid, "a.txt")
        calls = [{"id": uid, "type": "function", "function": {"name": "read_file", "arguments": {"path": "a.txt"}}}]
        back = assistant(f"I look.\nCalling tools:\n{calls}") if as_text else made
        bench.feed(call(f"{n}.2", [SYSTEM, user("task"), back, user("seen")], "done", tools=TOOLS, at=1e9 + 50 + n))
    assert partition(owners(bench)) == {frozenset({f"{n}.1", f"{n}.2"}) for n in range(3)}
    rows = bench.pool.steps.page(limit=None).to_pylist()
    assert not any("uncertain" in row["findings"] for row in rows)
    assert {row["transition"] for row in rows if row["step_uid"].endswith("2")} <= {"realigned", "extends"}
    assert len({row["prompt_uid"] for row in rows}) == 1


COMMITS = {"role": "system", "content": "You are an engineer that generates concise, one-line Git commit messages."}
TITLES = {"role": "system", "content": "You are a title generator. You output ONLY a thread title. Nothing else."}


def test_a_harness_call_with_nothing_before_it_is_auxiliary(bench: Bench) -> None:
    answer = "I wrote the ninth number into the file."
    bench.feed(
        call("title", [TITLES, user("Count the lions.")], "Lions", at=1e9),
        call("work", [SYSTEM, user("Count the lions.")], answer, at=1e9 + 1),
        call("commit", [COMMITS, user(f"USER: Count the lions.\nASSISTANT: {answer}\n+9")], "feat: nine", at=1e9 + 2),
        call("again", [COMMITS, user(f"USER: Count the lions.\nASSISTANT: {answer}\n+10")], "feat: ten", at=1e9 + 3),
        call("other", [COMMITS, user("+ a line of nobody")], "feat: a line", at=1e9 + 4),
        call("asked", [SYSTEM, user("Fix the parser of commit messages.")], "Done.", at=1e9 + 5),
        call("named", [COMMITS, user("+ the task itself")], "feat: it", trajectory_uid="t", at=1e9 + 6),
    )
    kinds = {row["step_uid"]: row["call_kind"] for row in bench.pool.steps.page(limit=None).to_pylist()}
    assert {uid for uid, kind in kinds.items() if kind == "main"} == {"work", "asked", "named"}
    assert set(kinds.values()) == {"main", "auxiliary"}
    assert partition(owners(bench)) == {
        frozenset(one) for one in (["title"], ["work", "commit", "again"], ["other"], ["asked"], ["named"])
    }


def test_thousands_of_open_trajectories_of_unknown_identity(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is split, however many are open; a call looks at those alone that share an answer with it."""
    looked: list[int] = []
    original = opentrajectories.OpenTrajectories.candidates

    def spied(self: Any, call: Any) -> Iterator[tuple[int, list[str]]]:
        for n, uids in original(self, call):
            looked.append(len(uids))
            yield n, uids

    monkeypatch.setattr(opentrajectories.OpenTrajectories, "candidates", spied)
    n, turns = 1200, 3
    talks = [[SYSTEM, user(f"task {number % 40}")] for number in range(n)]
    for turn in range(turns):
        for number, talk in enumerate(talks):
            bench.journal.append(call(f"{number}.{turn}", talk, f"answer {number} {turn}", at=1e9 + turn, ids=False))
            talk += [assistant(f"answer {number} {turn}"), user(f"seen {turn}")]
    bench.feed()
    assert partition(owners(bench)) == {frozenset(f"{number}.{turn}" for turn in range(turns)) for number in range(n)}
    assert max(looked) == 1
    assert bench.pool.groups.page().num_rows == 40
    bench.restart()
    monkeypatch.setattr("core.ingest.linker.MAX_RELOADED", 8)
    for number in (0, 1, n // 2, n - 1):
        bench.feed(call(f"{number}.late", talks[number], "end", at=2e9))
    linked = owners(bench)
    assert all(linked[f"{number}.late"] == linked[f"{number}.0"] for number in (0, 1, n // 2, n - 1))


def test_hundreds_of_open_trajectories_with_the_same_answers_survive_a_restart(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tasks differ, their answers do not: the answers alone name too many candidates."""
    examined: list[str] = []

    def spied(links: TrajectoryLinks, call: Call) -> Continuation | None:
        examined.append(call.step_uid)
        return continuation(links, call)

    monkeypatch.setattr("core.ingest.linker.continuation", spied)
    n, turns = 300, 3
    talks = [[SYSTEM, user(f"task {number}")] for number in range(n)]
    for turn in range(turns):
        calls = [call(f"{i}.{turn}", talk, "Let me look.", at=1e9 + turn, ids=False) for i, talk in enumerate(talks)]
        bench.feed(*calls)
        bench.restart()
        for i, talk in enumerate(talks):
            talk += [assistant("Let me look."), user(f"seen {turn} of {i}")]
    expected = {frozenset(f"{number}.{turn}" for turn in range(turns)) for number in range(n)}
    assert partition(owners(bench)) == expected
    assert len(examined) == n * (turns - 1)


def test_memory_of_open_trajectories_is_bounded() -> None:
    opened = opentrajectories.OpenTrajectories(max_open=10, max_answers=20)
    for number in range(1000):
        opened.touch(f"t{number}")
        opened.note_answers([(f"t{number}", number, number), (f"t{number}", None, -1)])
    assert len(opened) == 10
    for index in (opened._answers, opened._replies, opened._prompts):
        assert len(index._young) + len(index._old) <= 40
    assert len(opened._answers.get(-1)) == opentrajectories.MAX_ALIKE


def test_links_survive_a_batch_that_is_bigger_than_memory(bench: Bench) -> None:
    """What a batch says of a trajectory can't be read back before it is stored."""
    bench.ingest._linker._max_bytes = 1
    talks = {name: [user(f"task {name}")] for name in "abc"}
    records = []
    for turn in range(3):
        for name, talk in talks.items():
            records.append(call(f"{name}{turn}", talk, f"answer {name}{turn}", at=1e9 + turn))
            talk += [assistant(f"answer {name}{turn}"), user("go on")]
    bench.feed(*records)
    assert partition(owners(bench)) == {frozenset(f"{name}{turn}" for turn in range(3)) for name in "abc"}
    assert len(bench.ingest._linker._trajectories) == 1


@pytest.mark.parametrize("restart", [False, True])
def test_a_registered_version_is_stamped_as_claw_r1_does(bench: Bench, restart: bool) -> None:
    def feed(*records: bytes) -> None:
        for record in records:
            bench.feed(record)
            if restart:
                bench.restart()

    feed(
        call("before", [user("q")], "a", trajectory_uid="t"),
        register_record(at=1e9, trajectory_uid="t", metadata={"policy_version": 7}),
        call("one", [user("q")], "b", trajectory_uid="t"),
        call("other", [user("q")], "b", trajectory_uid="u"),
        register_record(at=1e9, trajectory_uid="t", metadata={"policy_version": 8}),
        call("two", [user("q")], "c", trajectory_uid="t"),
        complete_record(at=1e9, trajectory_uid="t", reward=1.0),
        call("after", [user("q")], "d", trajectory_uid="t"),
    )
    versions = {
        row["step_uid"]: (row["policy_version"], row["policy_version_end"])
        for row in bench.pool.steps.page(limit=None).to_pylist()
    }
    assert versions == {"before": (3, 4), "one": (7, 7), "other": (3, 4), "two": (8, 8), "after": (3, 4)}


ANSWERS = st.sampled_from(["yes", "no", "look", "run it"])
SHOTS = st.lists(st.tuples(st.sampled_from(["q1", "q2"]), ANSWERS), max_size=2)


@settings(max_examples=40)
@given(st.data())
def test_against_a_linker_that_knows(data: st.DataObject) -> None:
    """Random agents behind examples, with samples, failures and branches, interleaved; each has its own connection.

    The reference is the agents' own memory. Words repeat, so that wrong joins are near: what is shared tells nothing
    unless it is what was sampled.
    """
    import tempfile

    n = data.draw(st.integers(1, 4))
    agents: list[dict[str, Any]] = []
    for number in range(n):
        shots = [one for q, a in data.draw(SHOTS) for one in (user(q), assistant(a))]
        agents.append(
            {"talk": [SYSTEM, *shots, user(data.draw(st.sampled_from(["q1", "q2", "task"])))], "name": number}
        )
    task = {one["name"]: orjson.dumps(one["talk"]) for one in agents}
    truth: dict[str, int] = {}
    records, at = [], 1e9
    for step in range(data.draw(st.integers(n, 12))):
        agent = agents[data.draw(st.integers(0, n - 1))]
        at += 1
        uid = f"s{step}"
        last = agent.get("last")
        if last is not None and data.draw(st.integers(0, 4)) == 0:
            agent["talk"], answer = last, data.draw(ANSWERS)  # a branch: asked again from where it stood
        else:
            answer = data.draw(ANSWERS)
        first = not any(owner == agent["name"] for owner in truth.values())
        again = agent["talk"] == [*orjson.loads(task[agent["name"]])]
        record = call(uid, agent["talk"], f"{answer} {agent['name']}" if first else answer, tools=TOOLS, at=at)
        answer = f"{answer} {agent['name']}" if first else answer
        records.append(with_(record, connection=f"127.0.0.1:{agent['name']}"))
        if again and not first:
            # A second sample of the first prompt is an attempt of its own to whoever only sees requests.
            truth[uid] = 1000 + step
            continue
        truth[uid] = agent["name"]
        agent["last"] = list(agent["talk"]) if not again else None
        agent["talk"] = [*agent["talk"], assistant(answer), user(data.draw(st.sampled_from(["q1", "go on"])))]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            bench.feed(*records)
            linked = owners(bench)
            if any("uncertain" in row["findings"] for row in bench.pool.steps.page(limit=None).to_pylist()):
                # An example that repeats a message and its sampled answer looks like a shortened talk.
                return
            assert partition(linked) == partition({uid: str(owner) for uid, owner in truth.items()})
            named = tasks(bench)
            roots = {owner: uid for uid, owner in reversed(truth.items())}
            for one in agents:
                for other in agents:
                    if one["name"] in roots and other["name"] in roots:
                        same = named[roots[one["name"]]] == named[roots[other["name"]]]
                        assert same == (task[one["name"]] == task[other["name"]])
        finally:
            bench.close()
