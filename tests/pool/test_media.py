"""Images in messages: stored once, given back as they were sent."""

from __future__ import annotations

import base64
import random
from typing import Any

import pytest

from core.batch.datasets import freeze_version
from core.batch.recipe import parse_recipe
from core.pool import Pool
from core.pool.upkeep.retention import Retention
from core.types import Step, View
from tests.batch.keeping_all import SFT_ALL

PNG = "data:image/png;base64," + base64.b64encode(random.Random(1).randbytes(60_000)).decode()
JPEG = "data:image/jpeg;base64," + base64.b64encode(random.Random(2).randbytes(5_000)).decode()
GIF = "data:image/gif;base64," + base64.b64encode(random.Random(3).randbytes(4_000)).decode()


def seen(text: str, *urls: str) -> dict[str, Any]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": "user", "content": [{"type": "text", "text": text}, *images]}


def step(number: int, messages: list[dict[str, Any]]) -> Step:
    return Step(
        step_uid=f"s{number}",
        trajectory_uid=f"t{number}",
        prompt_uid="p",
        step_index=0,
        created_at=0.0,
        messages=messages,
        response_message={"role": "assistant", "content": "ok"},
    )


@pytest.fixture
def pool() -> Pool:
    return Pool.open(":memory:", clock=lambda: 0.0)


def rows(pool: Pool, sql: str) -> list[tuple[Any, ...]]:
    with pool._db.read() as cursor:
        return cursor.execute(sql).fetchall()


def test_one_image_in_many_messages_is_stored_once(pool: Pool) -> None:
    prompts = [[seen(f"look {n}", PNG, JPEG)] for n in range(20)]
    assert pool.steps.append([step(n, messages) for n, messages in enumerate(prompts[:10])]) == 10
    assert pool.steps.append([step(n, messages) for n, messages in enumerate(prompts)]) == 10
    assert rows(pool, "SELECT count(*), sum(length(url)) FROM media") == [(2, len(PNG) + len(JPEG))]
    assert rows(pool, "SELECT max(length(body)) < 400 FROM messages") == [(True,)]
    for n, messages in enumerate(prompts):
        assert pool.steps.get(f"s{n}")["messages"] == messages


def test_words_that_look_like_a_name_stay_words(pool: Pool) -> None:
    pool.steps.append([step(0, [seen("look", PNG)])])
    (digest,) = rows(pool, "SELECT replace(content_hash::VARCHAR, '-', '') FROM media")[0]
    sly = [{"role": "user", "content": f"claw-media:{digest}"}, seen("x", f"claw-media:{digest}"), seen("y", PNG)]
    pool.steps.append([step(1, sly)])
    assert pool.steps.get("s1")["messages"] == sly


def test_what_is_short_or_no_data_url_is_left_in_place(pool: Pool) -> None:
    messages = [seen("a", "data:image/png;base64,AAAA", "https://example.org/" + "a" * 2000), seen("b" * 3000)]
    pool.steps.append([step(0, messages)])
    assert rows(pool, "SELECT count(*) FROM media") == [(0,)]
    assert pool.steps.get("s0")["messages"] == messages


def test_retention_takes_images_that_nobody_names_and_no_other() -> None:
    now = [1e9]
    pool = Pool.open(":memory:", clock=lambda: now[0])
    prompts = {0: [seen("frozen", PNG)], 1: [seen("goes", PNG, JPEG)], 2: [seen("also goes", JPEG, GIF)]}
    pool.steps.append([step(n, messages) for n, messages in prompts.items()])
    freeze_version(
        pool,
        "v1",
        View({"step_uid": "s0"}),
        parse_recipe(SFT_ALL),
        author="a",
    )
    now[0] += 30 * 86400
    stays = [seen("new", GIF)]
    pool.steps.append([step(3, stays)])
    assert pool.retention.apply(Retention(older_than_days=7), author="a")["n_trajectories"] == 2
    assert rows(pool, "SELECT sum(length(url)) FROM media") == [(len(PNG) + len(GIF),)]
    assert pool.steps.get("s0")["messages"] == prompts[0] and pool.steps.get("s3")["messages"] == stays
    assert pool.versions.verify("v1")
    pool.steps.append([step(4, prompts[2])])
    assert pool.steps.get("s4")["messages"] == prompts[2], "what went comes again"
