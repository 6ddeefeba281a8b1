"""Programs of checks: canonical semantics beside ``bash``, and the typed outcome of everything that goes wrong."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from core.packs.clawgym import WORKSPACE, reward_script
from core.rewards import score
from core.rewards.run import once

CHECKER = "import json, sys, pathlib\nws = pathlib.Path(sys.argv[1])\n"


def files(root: Path, content: dict[str, str]) -> Path:
    for name, text in content.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def workspace(tmp_path):
    return files(tmp_path / "workspace", {"out.txt": "done", "input/a.csv": "x\n1\n"})


def clawgym(tmp_path, check, **spec):
    folder = files(tmp_path / "reward", {"check.py": CHECKER + check, "reward.sh": reward_script().content.decode()})
    return {"verifier": "reward_sh", "folder": str(folder), **spec}


def by_bash(tmp_path, workspace):
    """The number that the unchanged script prints by ``bash``, with the path of ClawGym's containers replaced."""
    script = (tmp_path / "reward" / "reward.sh").read_text()
    script = script.replace(f"{WORKSPACE}/reward", str(tmp_path / "reward")).replace(WORKSPACE, str(workspace))
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=env)
    return float(run.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "values",
    [{"a": 1.0, "b": 0.25}, {"a": True, "b": False, "c": True, "reward": 0.0}, {"a": "1", "b": 0}, 0.5, {}, [], "x"],
)
def test_the_canonical_number_is_that_of_bash(tmp_path, workspace, values):
    check = clawgym(tmp_path, f"print(json.dumps({values!r}))\n")
    result = score(workspace, check)
    assert result.value == by_bash(tmp_path, workspace)
    assert result.details["values"] == (values if isinstance(values, dict) else result.details["values"])
    assert result.environment["python"] and result.environment["isolation"]["level"]


def test_the_gated_value_stands_beside_the_canonical_one(tmp_path, workspace):
    check = clawgym(tmp_path, "print(json.dumps({'a': True, 'b': True, 'reward': 0.25}))\n")
    result = score(workspace, check)
    assert result.value == pytest.approx(2.25 / 3) == result.details["canonical"]
    assert (result.details["gated"], result.details["mean_without_gated"]) == (0.25, 1.0)
    assert score(workspace, {**check, "gated": True}).value == 0.25


def test_a_checker_finds_itself_only_inside(tmp_path, workspace):
    check = clawgym(tmp_path, "print(json.dumps({'a': any('needle' in p.read_text() for p in ws.rglob('*.py'))}))\n")
    assert score(workspace, check).value == 1.0
    assert score(workspace, {**check, "placement": "outside"}).value == 0.0
    assert not (workspace / "reward").exists()


def test_what_the_agent_planted_does_not_count(tmp_path, workspace):
    """Modules beside the working folder, a folder ``reward``, settings of a home: none reaches the check."""
    forged = "import sys\nprint(1.0)\nsys.exit(0)\n"
    planted = {name: forged for name in ("json.py", "sitecustomize.py", "usercustomize.py", "reward/json.py")}
    files(workspace, planted)
    for placement in ("workspace", "outside"):
        check = clawgym(tmp_path, "print(json.dumps({'a': 0.0}))\n", placement=placement)
        assert score(workspace, check).value == 0.0
    relative = "python3 reward/check.py . | python3 -c 'import json, sys; print(json.load(sys.stdin)[\"a\"])'\n"
    files(tmp_path, {"reward/reward.sh": relative})
    assert score(workspace, check | {"placement": "workspace"}).value == 0.0


def test_the_payload_reaches_the_check(tmp_path, workspace):
    code = (
        "import os\nprint(json.dumps({'a': json.load(open(os.environ['OPENCLAW_REWARD_PAYLOAD']))['final_message']}))"
    )
    for placement in ("workspace", "outside"):
        check = clawgym(tmp_path, code, placement=placement, payload={"final_message": 0.75})
        assert score(workspace, check).value == 0.75


@pytest.mark.parametrize("kind", ["reward_sh", "code_check", "grade", "entry_point"])
@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("__import__('time').sleep(60)", "timed_out"),
        ("raise SystemExit(3)", "crashed"),
        ("1 / 0", "crashed"),
        ("RESULT('not a number')", "no_number"),
        ("RESULT({'a': float('nan')})", "not_finite"),
        ("RESULT({'a': float('inf'), 'b': 1.0})", "not_finite"),
        ("RESULT({'a': 7.0})", "no_number"),
        ("__import__('os').kill(__import__('os').getpid(), 9)", "crashed"),
    ],
)
def test_failures_are_typed_and_never_a_zero(tmp_path, workspace, kind, body, outcome):
    if kind == "code_check" and "7.0" in body:
        outcome = "scored"
    code = body.replace("RESULT", "print_json")
    spec = {"timeout_s": 1.0 if outcome == "timed_out" else 60.0}
    if kind in {"reward_sh", "code_check"}:
        check = clawgym(tmp_path, f"print_json = lambda v: print(json.dumps(v))\n{code}\n", **spec)
        if kind == "code_check":
            check |= {"verifier": kind, "program": str(tmp_path / "reward" / "check.py")}
    else:
        text = body.replace("RESULT(", "return (") if "RESULT" in body else body
        files(tmp_path, {"made/grade.py": f"def grade(transcript, workspace):\n    {text}\n"})
        files(tmp_path, {"made/own.py": f"def check(workspace, payload):\n    {text}\n"})
        made = tmp_path / "made"
        check = {"verifier": kind, "program": str(made / "grade.py"), "function": "own:check", "folder": str(made)}
        check |= spec
    if kind == "reward_sh" and "not a number" in body:
        outcome = "scored"  # ClawGym's average of anything else is 0
    result = score(workspace, check)
    assert result.outcome == outcome, result
    assert (result.value is None) == (outcome != "scored")
    assert (result.error is None) == (outcome == "scored")
    assert json.dumps(result.as_dict(), allow_nan=False)


def test_missing_programs(tmp_path, workspace):
    fields = {"reward_sh": "folder", "harbor": "folder", "unit_tests": "folder", "grade": "program"}
    for verifier, name in fields.items():
        assert score(workspace, {"verifier": verifier, name: str(tmp_path / "nowhere")}).outcome == "missing"
    files(tmp_path, {"reward/reward.sh": "true\n"})
    assert score(workspace, {"verifier": "reward_sh", "folder": str(tmp_path / "reward")}).outcome == "no_number"


@pytest.mark.parametrize(
    ("script", "value", "outcome"),
    [
        ("mkdir -p /logs/verifier; echo 0.5 > /logs/verifier/reward.txt", 0.5, "scored"),
        ("echo 1 > /logs/verifier/reward.txt; exit 1", 1.0, "scored"),
        ('echo \'{"reward": 2.5, "x": 1}\' > /logs/verifier/reward.json', 2.5, "scored"),
        ('echo \'{"a": 1, "b": 0}\' > /logs/verifier/reward.json; echo 1 > /logs/verifier/reward.txt', 0.5, "scored"),
        ("python3 /tests/own.py", 1.0, "scored"),
        ("cat /app/out.txt; grep -q done /app/out.txt && echo 1 > /logs/verifier/reward.txt", 1.0, "scored"),
        ("exit 0", None, "missing"),
        ("echo nan > /logs/verifier/reward.txt", None, "not_finite"),
        ("echo NaN > /logs/verifier/reward.json", None, "no_number"),
        ("echo good > /logs/verifier/reward.txt", None, "no_number"),
        ('echo \'{"a": "x"}\' > /logs/verifier/reward.json', None, "no_number"),
        ("ln -s /etc/hostname /logs/verifier/reward.txt", None, "missing"),
    ],
)
def test_harbor(tmp_path, workspace, script, value, outcome):
    own = "import pathlib\npathlib.Path('/logs/verifier/reward.txt').write_text('1')\n"
    folder = files(tmp_path / "tests", {"test.sh": script, "own.py": own})
    check = {"verifier": "harbor", "folder": str(folder), "workdir": "/app"}
    result = score(workspace, check)
    assert (result.value, result.outcome) == (value, outcome), result
    refused = score(workspace, {**check, "image": "ubuntu:24.04"})
    assert refused.outcome == "refused" and "ubuntu" in (refused.error or "")
    assert score(workspace, {**check, "image": "ubuntu:24.04", "without_image": True}).value == value


TESTS = """
import pytest
from answer import f
def test_one(): assert f() == 1
def test_two(): assert f() == 2, "two"
@pytest.mark.skip
def test_three(): pass
class TestFour:
    def test_four(self): assert True
"""


def test_unit_tests_are_counted_as_pytest_counts_them(tmp_path, workspace):
    files(workspace, {"answer.py": "def f(): return 1\n", "conftest.py": "raise SystemExit\n", "pytest.py": "1 / 0\n"})
    files(workspace, {"json.py": "1 / 0\n", "sitecustomize.py": "1 / 0\n"})
    folder = files(tmp_path / "tests", {"test_it.py": TESTS})
    check = {"verifier": "unit_tests", "folder": str(folder), "rule": "fraction"}
    result = score(workspace, check)
    # pytest's own verdict of the same files
    files(tmp_path / "own", {"test_it.py": TESTS, "answer.py": "def f(): return 1\n"})
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", "-c", "/dev/null", "."],
        cwd=tmp_path / "own",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 2 passed, 1 skipped" in run.stdout
    assert result.value == pytest.approx(2 / 3), result
    assert (result.details["n_passed"], result.details["n_tests"], result.details["n_skipped"]) == (2, 3, 1)
    assert [name for name, value in result.details["values"].items() if not value] == ["test_it::test_two"]
    assert "two" in result.details["messages"]["test_it::test_two"]
    assert score(workspace, {**check, "rule": "all"}).value == 0.0
    (workspace / "answer.py").unlink()
    broken = score(workspace, check)
    assert broken.outcome == "crashed", broken
    files(folder, {"test_it.py": "x = 1\n"})
    assert score(workspace, check).outcome in {"missing", "crashed"}


def test_an_environment_is_recorded(tmp_path, workspace):
    check = clawgym(tmp_path, "import yaml, helper\ntry:\n    import nowhere\nexcept ImportError: pass\nprint(1)\n")
    files(tmp_path, {"reward/helper.py": "import json\n"})
    result = score(workspace, check)
    assert result.value == 1.0, result
    assert result.environment["packages"] == {"nowhere": None, "yaml": f"PyYAML {importlib.metadata.version('PyYAML')}"}
    assert len(result.environment["packages_sha256"]) == 64
    assert result.environment["python"] == sys.version.split()[0]


def test_threads_that_come_together_wait_for_one_value():
    """The packages take half a second of processor time to read: a run's workers must not each do it."""
    n_threads, made = 8, []
    together = threading.Barrier(n_threads)

    def make():
        made.append(threading.get_ident())
        return object()

    value = once(make)

    def ask(_):
        together.wait(30)
        return value()

    with ThreadPoolExecutor(n_threads) as threads:
        values = list(threads.map(ask, range(n_threads)))
    assert len(set(map(id, values))) == len(made) == 1
