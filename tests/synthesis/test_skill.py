"""The skill route: skills that need credentials or media are skipped, and secrets never reach a prompt."""

from __future__ import annotations

import json
import shutil

import httpx
import pytest

from core.errors import InvalidInput
from core.packs import read_pack
from core.scoring.judge import GatewayJudge, JudgeSettings
from core.synthesis import FINISHED, SynthesisSettings, SynthesisStore, pack_of, work
from core.synthesis.files import write_stage_files
from core.synthesis.seeds import demo_folder, read_seeds
from core.synthesis.skills import read_skills
from tests.conftest import scripted_engine
from tests.synthesis.tasks import ANNOTATING, ROWS, Direct, rule, usual

SECRETS = ["sk-" + "a1B2" * 8, "hunter-two-hundred", "plain-value-of-a-token", "-----BEGIN PRIVATE KEY-----"]
ANNOTATION = {
    "language": "english",
    "summary": "s",
    "auth_required": False,
    "text_only_compatible": True,
    "has_risk": False,
    "core_content": "Add up the amounts.",
}
TASK = {
    "user_query": "Add up the amounts of data/sales.csv and write out/total.json with the field total.",
    "input_files": [{"file_path": "data/sales.csv", "content": ROWS}],
    "expected_behaviors": ["total is 42"],
    "difficulty": 4,
    "reward_type": "code",
}
WRITING = "Solving it must need what these skills teach"


@pytest.fixture
def skills(tmp_path):
    """The shipped skills, one of which has secrets, and one that needs pictures."""
    folder = tmp_path / "skills"
    shutil.copytree(demo_folder() / "skills", folder)
    text = (folder / "csv-ledger/SKILL.md").read_text()
    settings = f"\nexport LEDGER_PASSWORD = {SECRETS[1]}\n'sync-token': {SECRETS[2]}\nUse {SECRETS[0]} to sync.\n"
    (folder / "csv-ledger/SKILL.md").write_text(text + settings)
    (folder / "csv-ledger/.env").write_text("ANY=thing-of-the-environment\n")
    (folder / "csv-ledger/key.pem").write_text(f"{SECRETS[3]}\nthing-of-the-environment\n")
    (folder / "csv-ledger/logo.bin").write_bytes(b"\xff\xfe\x00")
    (folder / "pictures").mkdir()
    (folder / "pictures/SKILL.md").write_text("Describe the picture.\n")
    return folder


def test_secrets_are_replaced(skills):
    ledger = next(one for one in read_skills(skills) if one.name == "csv-ledger")
    assert (ledger.n_secrets, ledger.n_left_out) == (5, 1)
    assert "amount_cents" in ledger.text
    for secret in [*SECRETS, "thing-of-the-environment"]:
        assert secret not in ledger.text
    with pytest.raises(InvalidInput, match="has no skill"):
        read_skills(skills / "csv-ledger")


def test_the_shipped_seeds_can_be_read():
    seeds = read_seeds(demo_folder())
    assert min(map(len, (seeds.personas, seeds.categories, seeds.operations))) >= 12
    assert seeds.sample(1, 2, 3) == seeds.sample(1, 2, 3) != seeds.sample(2, 2, 3)


def test_the_route_from_skills_to_a_pack(skills, tmp_path):
    needs_key = {**ANNOTATION, "auth_required": True, "auth_details": "a key of the mail provider"}
    needs_sight = {**ANNOTATION, "text_only_compatible": False, "non_text_reasons": ["pictures"]}
    rules = [
        rule(needs_key, ANNOTATING, "mail-sender"),
        rule(needs_sight, ANNOTATING, "pictures"),
        rule(ANNOTATION, ANNOTATING),
        rule(TASK, WRITING, times=1),
        rule({**TASK, "difficulty": 2}, WRITING, times=1),
        rule("no", WRITING),
        *usual(),
    ]
    settings = SynthesisSettings(
        "s", "skill", "scripted-1", 3, 1.0, skills=str(skills), workers=1, n_runs=1, n_mutants=2, min_difficulty=3
    )
    with scripted_engine(tmp_path, {"rules": rules}) as engine:
        studio = Direct(engine.base_url.removesuffix("/v1"))
        run = SynthesisStore(tmp_path / "synthesis").create(settings)
        assert work(run, lambda model: GatewayJudge(studio, JudgeSettings(model, max_tokens=4096))) == FINISHED
        log = httpx.get(f"{studio.base_url.removesuffix('/v1')}/__log").text
    for secret in [*SECRETS, "thing-of-the-environment"]:
        assert secret not in log
        assert secret.encode() not in (run.folder / "synthesis.log").read_bytes()
    state = run.state()
    reasons = {(row.stage, row.key): row.reason for row in state.rows.values() if row.state == "failed"}
    assert reasons[("annotate", "mail-sender")] == "it needs credentials: a key of the mail provider"
    assert reasons[("annotate", "pictures")] == "it needs media: pictures"
    assert reasons[("synthesize", "r00001")] == "its difficulty is 2, below 3"
    assert "malformed" in reasons[("synthesize", "r00002")]
    assert len(reasons) == 4
    chosen = [row.product for row in state.of_stage("compose")]
    assert [(one["primary"], one["supporting"]) for one in chosen[:2]] == [
        ("csv-ledger", ["log-triage"]),
        ("log-triage", ["csv-ledger"]),
    ]
    pack = pack_of(run)
    assert [(one.task_id, one.category, one.extra["skills"]) for one in pack.tasks] == [
        ("s-r00000", "csv-ledger", ["csv-ledger", "log-triage"])
    ]
    write_stage_files(run, tmp_path / "stages")
    record = json.loads((tmp_path / "stages/tasks.jsonl").read_text())
    assert (record["validation_mode"], record["prompt"]) == ("code", TASK["user_query"])
    read = read_pack(tmp_path / "stages/tasks.jsonl").tasks[0]
    assert read.checker_files.keys() == {"reward.sh", "check.py"}
    assert read.input_files == pack.tasks[0].input_files
