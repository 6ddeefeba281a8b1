"""No spelling of a planted secret leaves in any format: not as text, not as tokens, not in a manifest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from core.batch.datasets import VersionSource, freeze_version, version_plan
from core.batch.recipe import parse_recipe
from core.batch.redact import Redacted, TokenText, _trajectory, redact, texts_of
from core.errors import InvalidInput
from core.export import EXPORTERS, export
from core.gateway.access.keys import KeyStore
from core.pool import Pool
from core.pool.redaction.rules import Redaction, parse_redaction
from core.types import Step, View
from tests.batch.keeping_all import SFT_ALL, keeping_all
from tests.effort import settings

from .canaries import KEY, MAIL, PLACES, SPELLINGS, T0, TOKENIZER, core, held_by, message, spelled, step_with

RULES = {"rules": ["secrets", "email"]}
RECIPES = {"trl_dpo": "dpo", "trl_kto": "kto"}
SECRETS = {"key": KEY, "mail": MAIL}


def clean_step(uid: str, prompt_uid: str) -> Step:
    return step_with(uid, prompt_uid, {"response": message("assistant", f"all is well in {uid}")})


IN_A_GROUP = 6


def filled(pool: Pool, planted: dict[str, dict[str, Any]]) -> Pool:
    """Groups of a few planted steps, a good one and a bad one."""
    steps, done = [], []
    for first in range(0, len(planted), IN_A_GROUP):
        group = f"task {first}"
        some = list(planted.items())[first : first + IN_A_GROUP]
        more = [step_with(name, group, place) for name, place in some]
        more += [clean_step(f"good {first}", group), clean_step(f"bad {first}", group)]
        steps += more
        rewards = [*(float(k % 2) for k in range(len(some))), 1.0, 0.0]
        done += [
            {"kind": "complete", "trajectory_uid": step.trajectory_uid, "reward": reward}
            for step, reward in zip(more, rewards, strict=True)
        ]
    pool.steps.append(steps, completions=done)
    return pool


def exported(pool: Pool, version: str, form: str, out: Path) -> list[Path]:
    """Every file of the export; none where the format refuses, by its own words."""
    algorithm = RECIPES.get(form, "sft" if EXPORTERS[form].texts else "grpo")
    recipe = {
        **keeping_all(algorithm), "max_staleness": None,
        "token_sources": ["engine", "retokenized", *(["none"] if EXPORTERS[form].texts else [])],
        **({"n_rollouts": 2 if version == "drop" else 3} if form == "openrlhf" else {}),
    }  # fmt: skip
    planned = version_plan(pool, version, recipe)
    try:
        export(planned, pool, form, out)
    except InvalidInput:
        return []
    return [path for path in out.rglob("*") if path.is_file() and path.suffix != ".py"]


def leaks(files: list[Path], secrets: dict[str, str]) -> list[str]:
    """Which of the secrets, as they are spelled, stand in the files."""
    leaked = []
    for path in files:
        held = b"\0".join(held_by(path, spelled))
        for name, text in secrets.items():
            needles = {
                text.encode(),
                json.dumps(text)[1:-1].encode(),
                json.dumps(text, ensure_ascii=False)[1:-1].encode(),
            }
            leaked += [f"{name} in {path.name}" for needle in needles if needle in held]
    return leaked


def planted_everywhere(places_each: int) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Steps with a canary, by name, and what must not be found: each spelling in so many places, turn by turn."""
    planted, wanted = {}, {"key": KEY, "mail": MAIL, "half": KEY[3:]}
    names, at = list(PLACES), 0
    for kind, secret in SECRETS.items():
        for spelling, spell in SPELLINGS.items():
            text = spell(secret)
            wanted[f"{kind} {spelling}"] = core(text)
            for _ in range(places_each):
                place = names[at % len(names)]
                at += 1
                planted[f"step {at}"] = PLACES[place](text)
    return planted, wanted


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pool, dict[str, str]]]:
    planted, wanted = planted_everywhere(1)
    path = tmp_path_factory.mktemp("canaries") / "pool.duckdb"
    pool = filled(Pool.open(path, memory="1GB", threads=1, clock=lambda: T0 + 100), planted)
    for action in ("mask", "drop"):
        freeze_version(
            pool, action, View(), parse_recipe(SFT_ALL), author="ann", texts=texts_of(None),
            redaction=parse_redaction({**RULES, "action": action}),
        )  # fmt: skip
    freeze_version(pool, "as it is", View(), parse_recipe(SFT_ALL), author="ann")
    yield pool, wanted
    pool.close()


FORMATS = sorted(EXPORTERS)


@pytest.mark.parametrize("form", FORMATS)
def test_no_canary_in_any_format(form: str, everywhere: tuple[Pool, dict[str, str]], tmp_path: Path) -> None:
    pool, wanted = everywhere
    bare = exported(pool, "as it is", form, tmp_path / "bare")
    if not bare:
        pytest.fail(f"{form} wrote nothing at all")
    # A pair is of the best and the worst of a group, which need not be planted ones.
    # Statistics have no texts and no tokens.
    assert leaks(bare, wanted) or form in ("trl_dpo", "group_statistics"), "what is looked for can be found"
    written = {action: exported(pool, action, form, tmp_path / action) for action in ("mask", "drop")}
    assert written["drop"]
    assert written["mask"] or not EXPORTERS[form].masks_tokens or form in ("verl_rollout", "prime_rl", "areal")
    for files in written.values():
        assert leaks(files, wanted) == []


@pytest.mark.parametrize("place", PLACES)
def test_every_spelling_is_found_in_every_place(place: str) -> None:
    planted = {
        f"{kind} {n}": PLACES[place](spell(secret))
        for kind, secret in SECRETS.items()
        for n, spell in SPELLINGS.items()
    }
    pool = filled(Pool.open(":memory:", clock=lambda: T0), planted)
    members = pool.steps.page(View(), limit=None).select(["step_uid", "trajectory_uid", "prompt_uid"])
    for action in ("mask", "drop"):
        rules = parse_redaction({**RULES, "action": action})
        assert rules is not None
        redacted = redact(pool.training, pool.screening, members, rules, texts_of(None))
        if place == "prompt_uid":
            assert redacted.dropped == dict.fromkeys(planted, "identifier")
        elif action == "drop":
            assert redacted.dropped == dict.fromkeys(planted, "hit")
        else:
            assert redacted.n_masked_steps + len(redacted.dropped) == len(planted)
            assert set(redacted.dropped) <= set(planted)
            assert len(redacted.dropped) < len(planted) / 2, "most stay, masked"
    pool.close()


# Every border of tokens -------------------------------------------------------------------------------------------


class OneTrajectory:
    """A pool of one step."""

    def __init__(self, step: Step) -> None:
        self.step = {name: getattr(step, name) for name in step.__dataclass_fields__}


BYTES = TokenText([bytes([i]) for i in range(256)], ord("*"))
SHIPPED = TokenText(TOKENIZER.token_bytes, TOKENIZER.encode("*")[0])


def masked_text(step: Step, text: TokenText, rules: Redaction) -> tuple[str | None, str]:
    """Why the step is gone, and what its tokens spell when its masks are laid over them."""
    redacted = Redacted()
    _trajectory(redacted, step.trajectory_uid, [OneTrajectory(step).step], rules, {step.tokenizer_hash: text})
    ids = [*step.prompt_ids, *step.response_ids]
    starts, ends, mask_id = redacted.masks.get(step.step_uid, ([], [], 0))
    for start, end in zip(starts, ends, strict=True):
        ids[start:end] = [mask_id] * (end - start)
    left = b"".join(text.token_bytes[i] for i in ids).decode("utf-8", "replace")
    return redacted.dropped.get(step.step_uid), left


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("secret", SECRETS)
def test_over_every_border_of_tokens(secret: str, spelling: str) -> None:
    """In answers without a message, so that only tokens tell; cut in two at each character, and in single bytes."""
    rules = parse_redaction(RULES)
    assert rules is not None
    text = SPELLINGS[spelling](SECRETS[secret])
    cuts = [
        (TOKENIZER.encode(f"it is {text[:k]}") + TOKENIZER.encode(f"{text[k:]} , yes"), SHIPPED)
        for k in range(len(text) + 1)
    ]
    cuts.append((list(f"it is {text} , yes".encode()), BYTES))
    for response, table in cuts:
        step = Step("s", "t", "p", 0, T0, prompt_ids=[1], response_ids=response, tokenizer_hash="h")
        gone, left = masked_text(step, table, rules)
        assert gone is None
        assert core(text) not in left
        assert left.startswith(f"{table.token_bytes[1].decode()}it")
        assert left.endswith("yes")


def test_a_session_key_that_somebody_pasted_is_a_secret() -> None:
    """The gateway knows others than the caller's by their hash only; the reference is a key that it gave out."""
    rules = parse_redaction(RULES)
    assert rules is not None
    key, _ = KeyStore().mint(trajectory_uid="t")
    for text in (f"it is {key}.", f'{{"key": "{key}"}}', f"cs- {key}\\n"):
        assert [text[hit.begin : hit.end] for hit in rules.hits(text)] == [key]
        step = Step("s", "t", "p", 0, T0, prompt_ids=[1], response_ids=TOKENIZER.encode(text), tokenizer_hash="h")
        gone, left = masked_text(step, SHIPPED, rules)
        assert gone is None and key not in left
    assert rules.hits(f"https://x.example/docs-{'a-page-' * 9}") == []


def test_over_every_border_of_two_messages() -> None:
    """Where a secret stands over two messages its tokens are apart: such a step goes, and a text-only one is masked."""
    rules = parse_redaction(RULES)
    assert rules is not None
    for k in range(1, len(KEY)):
        if rules.hits(KEY[:k]) or rules.hits(KEY[k:]):
            continue
        texts = {"messages": [message("user", f"first half {KEY[:k]}"), message("user", f"{KEY[k:]} and the rest")]}
        gone, _ = masked_text(step_with("s", "p", texts), SHIPPED, rules)
        assert gone == "unlocated", k
        pool = Pool.open(":memory:", clock=lambda: T0)
        pool.steps.append([step_with("s", "p", texts, tokens=False)])
        freeze_version(
            pool,
            "v",
            View(),
            parse_recipe(SFT_ALL),
            author="a",
            redaction=rules,
        )
        (step,) = VersionSource(pool, "v").trajectory("t-s")["steps"]
        held = json.dumps(step["messages"])
        assert "half [redacted:api_key]" in held
        assert '"[redacted:api_key] and' in held
        pool.close()
    kept = {"messages": [message("user", f"my key is {KEY}"), message("assistant", "Thanks"), message("user", "ok")]}
    gone, left = masked_text(step_with("s", "p", kept), SHIPPED, rules)
    assert gone is None, "a secret that one message ends with takes nothing of the next"
    assert "Thanks" in left


def test_a_value_under_a_telling_key_that_a_template_writes_in_its_own_way() -> None:
    rules = parse_redaction(RULES)
    assert rules is not None
    value = "correct+horse+battery"
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"password": value})}}
    prompt = f"<arg_key>password</arg_key><arg_value>{value}</arg_value>"
    step = Step(
        "s", "t", "p", 0, T0, prompt_ids=TOKENIZER.encode(prompt), response_ids=TOKENIZER.encode("done"),
        messages=[{"role": "assistant", "content": None, "tool_calls": [call]}], tokenizer_hash="h",
    )  # fmt: skip
    gone, left = masked_text(step, SHIPPED, rules)
    assert gone is None
    assert value not in left
    assert "<arg_key>password</arg_key>" in left
    odd = Step(**{**{name: getattr(step, name) for name in step.__dataclass_fields__},
                  "prompt_ids": TOKENIZER.encode(prompt.replace("+", " plus "))})  # fmt: skip
    assert masked_text(odd, SHIPPED, rules)[0] == "unlocated", "it may be there in a way that nobody knows"


def test_an_own_pattern_is_not_told_in_the_manifest(tmp_path: Path) -> None:
    pool = filled(
        Pool.open(":memory:", clock=lambda: T0), {"s": {"messages": [message("user", "Project Bluebird is on")]}}
    )
    freeze_version(
        pool, "v", View({}, "prompt_uid <> 'Project Bluebird'"), parse_recipe(SFT_ALL),
        author="boss of Project Bluebird", note="no Project Bluebird in it", texts=texts_of(None),
        redaction=parse_redaction({"patterns": {"own": "Project Bluebird"}}),
    )  # fmt: skip
    files = exported(pool, "v", "trl_sft", tmp_path)
    assert len(files) == 2
    assert leaks(files, {"own": "Bluebird"}) == []
    pool.close()


# Composed ---------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    secret=st.sampled_from(sorted(SECRETS)),
    inner=st.sampled_from(sorted(SPELLINGS)),
    outer=st.sampled_from(sorted(SPELLINGS)),
    place=st.sampled_from(sorted(PLACES)),
    form=st.sampled_from(FORMATS),
    action=st.sampled_from(["mask", "drop"]),
)
def test_spellings_inside_each_other(
    secret: str, inner: str, outer: str, place: str, form: str, action: str, tmp_path: Path
) -> None:
    # These two have no form for characters beyond a byte.
    assume(not (inner == "no_width" and outer in ("percent", "x")))
    text = SPELLINGS[outer](SPELLINGS[inner](SECRETS[secret]))
    pool = filled(Pool.open(":memory:", clock=lambda: T0), {"s": PLACES[place](text)})
    rules = parse_redaction({**RULES, "action": action})
    freeze_version(
        pool,
        "v",
        View(),
        parse_recipe(SFT_ALL),
        author="a",
        redaction=rules,
        texts=texts_of(None),
    )
    out = tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    files = exported(pool, "v", form, out)
    assert leaks(files, {"secret": SECRETS[secret], "spelled": core(text)}) == []
    assert pool.versions.get("v")["redaction"]["report"]["n_steps_with_hit"], "it was found"
    pool.close()


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_stands_there_twice_is_found_twice(spelling: str) -> None:
    rules = parse_redaction(RULES)
    assert rules is not None
    text = SPELLINGS[spelling](KEY)
    left = rules.clean(f"one {text} , two {text} , three {text} .")
    assert core(text) not in left
    assert left.count("[redacted:api_key]") == 3
    assert rules.clean(f"&nobody; {KEY}") == "&nobody; [redacted:api_key]"


def test_clean_texts_stay(tmp_path: Path) -> None:
    """What only looks like an encoding is left alone."""
    rules = parse_redaction(RULES)
    assert rules is not None
    texts = [
        "/usr/local/lib/python3.11/site-packages/numpy/core/multiarray.py", "call_abcdefghijklmnopqrstuvwx",
        "a" * 64, "deadbeef" * 8,
        "&nobody; and \\q", "100%20of&amp;that \\n \\u00e9", "QWxsIGlzIHdlbGwgaW4gdGhlIGhvdXNl", "na\u200bive",
    ]  # fmt: skip
    for text in texts:
        assert rules.hits(text) == []
    step = step_with("s", "p", {"messages": [message("user", " ".join(texts))]})
    members = pa.table({"step_uid": ["s"], "trajectory_uid": ["t-s"], "prompt_uid": ["p"]})
    pool = Pool.open(":memory:", clock=lambda: T0)
    pool.steps.append([step])
    redacted = redact(pool.training, pool.screening, members, rules, texts_of(None))
    assert (redacted.dropped, redacted.masks, dict(redacted.n_steps)) == ({}, {}, {})
    pool.close()
