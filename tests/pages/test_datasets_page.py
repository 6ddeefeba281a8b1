"""Tests of the Datasets and SQL pages: they show what core returns, and their actions take effect."""

from __future__ import annotations

import json
import re
import threading
from functools import partial
from urllib.parse import quote

import pytest

from core.batch.datasets import freeze_version
from core.batch.plan import plan
from core.batch.recipe import Recipe, parse_recipe
from core.pool.query.members import MemberFilter
from core.pool.sql.check import _functions
from core.types import Annotation, View
from studio.kit.jobs import Cancelled
from studio.widgets.sql.functions import FUNCTIONS
from studio.widgets.sql.result import LINK, chart_figure
from tests.conftest import eventually
from tests.pages.test_lab_pages import figure


def say(service, kind: str, value, uid: str, author: str = "anna", source: str = "human"):
    service.pool.labels.annotate([Annotation(kind, value, author, source, 1.0, trajectory_uid=uid)])


def press_freeze(open_page, name: str, **params):
    page = open_page("datasets", tab="freeze", **params)
    assert page.failures == []
    next(box for box in page.app.text_input if box.label == "Name").set_value(name)
    next(button for button in page.app.button if button.label == "Freeze").click().run()
    return page


def freeze(open_page, name: str, **params):
    """Freeze a version and wait until the page shows it: it is written beside the page."""
    page = press_freeze(open_page, name, **params)

    def shown() -> bool:
        if dict(page.app.query_params).get("version") != name:
            page.app.run()
        return dict(page.app.query_params).get("version") == name

    eventually(shown)
    assert page.failures == []
    return page


@pytest.mark.parametrize("tab", ["versions", "freeze", "diff", "rewards", "rescore"])
@pytest.mark.parametrize("full", [True, False])
def test_every_tab_opens(service, request, open_page, tab, full):
    if full:
        request.getfixturevalue("filled")
    assert open_page("datasets", tab=tab).failures == []


def written_sum(page) -> str | None:
    """The sha256 of the file after the export is done and the page is redrawn."""
    match = re.search(r"<dt[^>]*>sha256</dt><dd>(\w+)", page.html)
    if match is None:
        page.app.run()
    return None if match is None else match[1]


def test_freeze_then_label_then_compare_and_export(filled, open_page):
    freeze(open_page, "one", agent="opencode")
    head = filled.pool.versions.get("one")
    assert head["view"]["filters"] == {"agent": "opencode"}
    assert head["n_steps"] == filled.pool.steps.count(View({"agent": "opencode", "channel": "train"}))
    say(filled, "quality", "bad", "traj-1-0")
    freeze(open_page, "two", agent="opencode")
    page = open_page("datasets", tab="diff", a="one", b="two")
    assert page.failures == []
    counts = filled.pool.versions.diff("one", "two")["counts"]
    assert figure(page, "Changed") == str(counts["changed"]) and counts["changed"] > 0
    assert figure(page, "Added") == "0" and "trajectory quality" in page.html
    sums = []
    for _ in range(2):
        page = open_page("datasets", version="one")
        page.app.button(key="version-export").click().run()
        written = eventually(partial(written_sum, page))
        assert page.failures == []
        sums.append(written)
    assert sums[0] == sums[1]
    page.app.button(key="version-verify").click().run()
    assert "The hash is correct" in page.html


def test_the_rows_of_a_version_are_browsed(filled, open_page):
    freeze(open_page, "one")
    head = filled.pool.versions.get("one")
    page = open_page("datasets", version="one", show="rows")
    assert page.failures == []
    assert figure(page, "Steps") == str(head["n_steps"])
    success = open_page("datasets", version="one", show="rows", m_reward="success", m_order="n_response_tokens desc")
    assert success.failures == []
    counts = filled.pool.versions.summary("one", MemberFilter(reward="success"))
    assert figure(success, "Steps") == str(counts["n_steps"]) and 0 < counts["n_steps"] < head["n_steps"]
    shown = success.app.dataframe[-1].value
    assert len(shown) == min(50, counts["n_steps"]) and shown["n_response_tokens"].is_monotonic_decreasing
    assert (shown["trajectory_reward"] > 0.5).all()
    assert "No row matches" in open_page("datasets", version="one", show="rows", m_text="nobody").html


def test_a_redaction_is_tried_before_it_is_frozen(filled, open_page):
    page = open_page("datasets", tab="freeze")
    next(box for box in page.app.text_input if box.label.startswith("Custom")).set_value(r"traj-0-\d")
    next(button for button in page.app.button if button.label == "Try the redaction").click().run()
    assert page.failures == []
    assert filled.pool.versions.all() == []
    n = filled.pool.trajectories.count(View({"prompt_uid": "prompt-0"}))
    assert figure(page, "Distinct matches") == str(n) and "traj-0-1" in page.html
    page = open_page("datasets", tab="freeze")
    next(button for button in page.app.button if button.label == "Try the redaction").click().run()
    assert len(page.failures) == 1, "a dry run needs a rule"


def test_a_taken_name_is_refused_in_words(filled, open_page):
    freeze(open_page, "one")
    page = press_freeze(open_page, "one")

    def refused() -> bool:
        page.app.run()
        return any("one" in failure or "cs-callout" in failure for failure in page.failures)

    eventually(refused)


def test_freezing_can_be_cancelled(filled, open_page):
    """While the version waits for the pool's writer, the page answers; once cancelled, nothing of it is stored."""
    holding, release = threading.Event(), threading.Event()

    def write() -> None:
        with filled.pool._db.write():
            holding.set()
            release.wait(60)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert holding.wait(30)
        page = press_freeze(open_page, "one")
        assert page.failures == []
        assert "of 13 trajectories" in str([bar.proto.text for bar in page.app.get("progress")])
        assert next(button for button in page.app.button if button.label == "Freeze").disabled
        page.app.button(key="freeze-cancel").click().run()
    finally:
        release.set()
        writer.join()

    def ended() -> bool:
        page.app.run()
        return "Freezing was cancelled; nothing was stored." in page.html

    eventually(ended)
    assert page.failures == [] and filled.pool.versions.all() == []
    freeze(open_page, "one")
    assert filled.pool.versions.verify("one")


def test_a_freeze_that_is_stopped_anywhere_stores_nothing(filled):
    """Stopped at its first report, its second and so on, until it is no longer stopped."""
    recipe, n_stopped = parse_recipe({"algorithm": "grpo"}), 0
    while True:
        reports = iter([None] * n_stopped)

        def stop(done: int, total: int, reports=reports) -> None:
            if next(reports, StopIteration) is StopIteration:
                raise Cancelled("stopped")

        try:
            freeze_version(filled.pool, "one", View(), recipe, author="anna", progress=stop)
        except Cancelled:
            n_stopped += 1
            assert filled.pool.versions.all() == []
            with filled.pool._db.read() as cursor:
                tables = ("dataset_steps", "dataset_rewards", "dataset_versions")
                counts = [cursor.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0] for name in tables]
            assert counts == [0, 0, 0]
        else:
            break
    assert n_stopped == 3 and filled.pool.versions.verify("one")


def test_a_policy_is_previewed_then_adopted(filled, open_page):
    for source, value in (("verifier", 0.0), ("judge", 1.0)):
        say(filled, "reward", value, "traj-0-1", author=source, source=source)
    before = filled.pool.trajectories.get("traj-0-1", tokens=False)["reward"]
    page = open_page("datasets", tab="rewards")
    page.app.selectbox(key="policy-rule").select("precedence").run()
    page.app.multiselect(key="policy-sources-precedence").set_value(["verifier", "complete"]).run()
    assert page.failures == []
    counts = filled.pool.rewards.preview({"rule": "precedence", "sources": ["verifier", "complete"]}, channel="train")
    assert figure(page, "Trajectories changed") == str(counts["counts"]["n_trajectories_changed"])
    assert filled.pool.trajectories.get("traj-0-1", tokens=False)["reward"] == before == 1.0
    next(box for box in page.app.text_input if box.label == "Name").set_value("verifier-first")
    next(button for button in page.app.button if button.label.startswith("Adopt")).click().run()
    assert page.failures == []
    assert filled.pool.trajectories.get("traj-0-1", tokens=False)["reward"] == 0.0
    page = open_page("datasets", tab="rewards")
    assert "verifier-first v1" in page.html
    page.app.button(key="policy-none").click().run()
    assert filled.pool.trajectories.get("traj-0-1", tokens=False)["reward"] == 1.0


def test_reviewers_are_compared(filled, open_page):
    for uid, one, other in (("traj-0-0", "good", "good"), ("traj-0-1", "good", "bad"), ("traj-1-0", "bad", "bad")):
        say(filled, "quality", one, uid)
        say(filled, "quality", other, uid, author="ben")
    page = open_page("curate", tab="reviewers")
    assert page.failures == []
    agreement = filled.pool.agreement.between("anna", "ben", "quality", "trajectory")
    assert figure(page, "Both labelled") == "3" and float(figure(page, "Kappa (Cohen)")) == pytest.approx(
        agreement["kappa"], abs=1e-3
    )
    assert [button.label for button in page.app.button if (button.key or "").startswith("torn-")] == ["traj-0-1"]
    assert figure(open_page("curate", tab="reviewers", agent="opencode"), "Both labelled") == "1"


QUERY = "SELECT trajectory_uid, n_steps, agent FROM trajectory_state ORDER BY trajectory_uid"


def test_sql_answers_with_a_table(filled, open_page):
    page = open_page("sql", q=QUERY)
    assert page.failures == []
    shown = page.app.dataframe[0].value
    wanted = filled.pool.trajectories.page(View(), order="trajectory_uid", limit=None)
    assert shown["n_steps"].tolist() == wanted["n_steps"].to_pylist()
    assert open_page("sql").failures == []


def test_rows_of_sql_link_to_the_narrowest_that_they_name(filled, open_page):
    shown = (
        open_page("sql", q="SELECT prompt_uid, trajectory_uid FROM trajectories ORDER BY ALL").app.dataframe[0].value
    )
    assert list(shown.columns[1:]) == ["prompt_uid", "trajectory_uid"]
    assert shown[LINK].tolist() == [f"/inspect?trajectory={quote(uid)}" for uid in shown["trajectory_uid"]]
    assert LINK not in open_page("sql", q="SELECT agent FROM steps").app.dataframe[0].value


def test_earlier_queries_are_kept_with_their_results(filled, open_page):
    for text in (QUERY, "SELECT nope", f"{QUERY} LIMIT 3", QUERY):
        open_page("sql", q=text)
    stored = json.loads((filled.settings.data_dir / "preferences.json").read_text())
    (of_author,) = stored.values()
    n = filled.pool.trajectories.count(View())
    assert [(one["text"], one["n_rows"]) for one in of_author["sql_history"]] == [
        (QUERY, n), (f"{QUERY} LIMIT 3", 3), ("SELECT nope", None)
    ]  # fmt: skip


def test_the_editor_completes_what_the_console_answers(filled):
    with filled.pool._db.read() as cursor:
        # The parser makes operators of these.
        assert set(FUNCTIONS) <= _functions(cursor)[1] | {"coalesce", "extract", "ifnull"}
    assert list(FUNCTIONS) == sorted(FUNCTIONS)


@pytest.mark.parametrize(
    "text", ["DELETE FROM steps", "SELECT * FROM read_csv('/etc/passwd')", "SELEC 1", "SELECT nope"]
)
def test_sql_that_is_refused_is_explained(filled, open_page, text):
    page = open_page("sql", q=text)
    assert len(page.failures) == 1 and not page.app.dataframe
    assert filled.pool.steps.count(View()) > 0


def test_sql_as_a_saved_view(filled, open_page):
    page = open_page("sql", q=f"{QUERY} LIMIT 3", tab="view")
    assert page.failures == []
    next(box for box in page.app.text_input if box.label == "Name").set_value("three")
    next(button for button in page.app.button if button.label == "Save as a view").click().run()
    (saved,) = filled.pool.views.all()
    assert saved["name"] == "three" and filled.pool.trajectories.count(saved["view"]) == 3
    assert open_page("sql", q="SELECT 1 AS x", tab="view").failures == []


def test_sql_as_a_chart(filled, open_page):
    assert open_page("sql", q=QUERY, tab="chart").failures == []
    assert open_page("sql", q="SELECT 1 AS x", tab="chart").failures == []
    table = filled.pool.sql.run(QUERY).table
    figure_of = chart_figure(table, "trajectory_uid", "n_steps", "agent", "bar")
    assert {trace.name for trace in figure_of.data} == {"demo-agent", "opencode"}
    assert sum(len(trace.x) for trace in figure_of.data) == len(table)
    assert json.loads(figure_of.to_json())


def test_a_plan_of_a_version_is_shown_as_it_was_frozen(filled, open_page):
    """Chosen on the Batch page, planned as frozen, kept in the URL, and not changed by labels."""
    pool = filled.pool
    head = freeze_version(pool, "v1", View(), Recipe(), author="me")
    pool.labels.annotate([Annotation("quality", "bad", "me", "test", 1.0, trajectory_uid="traj-0-1")])
    now, frozen = plan(pool, View(), Recipe()), plan(pool, View(), Recipe(dataset="v1"))
    assert now.n_groups and len(now.trajectories) < len(frozen.trajectories)
    page = open_page("batch")
    assert figure(page, "Trajectories") == str(len(now.trajectories))
    box = next(box for box in page.app.selectbox if box.label == "Training data")
    box.select(("dataset", "v1")).run()
    assert page.failures == []
    assert figure(page, "Trajectories") == str(len(frozen.trajectories))
    recipe = page.app.query_params["recipe"]
    recipe = recipe if isinstance(recipe, str) else recipe[0]
    assert json.loads(recipe) == {"dataset": head["name"]}
    again = open_page("batch", recipe=recipe)
    assert figure(again, "Trajectories") == str(len(frozen.trajectories))
    version = pool.recipes.save("main", Recipe(dataset="v1").to_json(), author="me")
    pool.recipes.activate("train", "main", version, author="me")
    curate = open_page("curate")
    assert curate.failures == []
    assert figure(curate, "Plan: trajectories") == str(len(frozen.trajectories))


def test_score_again_then_adopt(filled, open_page):
    page = open_page("datasets", tab="rescore")
    assert "No re-scoring yet" in page.html
    next(box for box in page.app.selectbox if box.label == "Verifier").set_value("check")
    next(box for box in page.app.text_area if box.label == "Check as JSON").set_value("no JSON")
    next(button for button in page.app.button if button.label == "Score again").click().run()
    assert "is not JSON" in page.html
    check = {"verifier": "final_answer", "text": "42", "answer": "42"}
    next(box for box in page.app.text_area if box.label == "Check as JSON").set_value(json.dumps(check))
    next(button for button in page.app.button if button.label == "Score again").click().run()
    eventually(lambda: not filled.rescoring.running("rescore-1"))
    page = open_page("datasets", tab="rescore", rescore="rescore-1")
    assert page.failures == []
    compared = filled.rescoring.show("rescore-1")["comparison"]
    n_all = filled.pool.trajectories.count(View({"channel": "train"}))
    assert compared["outcomes"] == {"scored": n_all} and compared["n_now_solved"] > 0
    assert figure(page, "Crossed 0.5") == f"+{compared['n_now_solved']} −0"
    assert figure(page, "Equal") == str(compared["n_equal"])
    next(button for button in page.app.button if button.label == "Adopt").click().run()
    assert page.failures == []
    assert filled.rescoring.all()[0]["adopted"]["policies"] == {"train": "rescore-rescore-1@1"}
    table = filled.pool.trajectories.page(View({"channel": "train"}), limit=None)
    assert set(table["reward"].to_pylist()) == {1.0}
    next(button for button in page.app.button if button.label == "Discard").click().run()
    assert filled.rescoring.all() == []
