"""Tests of export differences: Batch names what a trainer does differently, and the flag that prevents it."""

from __future__ import annotations

from html import escape

import pytest

# Flags as in the trainers' sources and documentation.
FLAGS = {
    "slime": ["--reward-key advantage --disable-rewards-normalization", "--global-batch-size 12"],
    "areal": ["actor.reward_norm=null", "actor.ppo_n_minibatches=1"],
    "trl_sft": ["SFTConfig(max_length=None)", "per_device_train_batch_size"],
    "rllm": ["rllm.algorithm.use_precomputed_advantage=true"],
}


@pytest.mark.parametrize("name", FLAGS)
def test_a_line_says_what_differs_and_the_flag_that_stops_it(filled, open_page, name):
    page = open_page("batch", tab="export", format=name)
    assert page.failures == []
    notes = [line for line in page.html.split("\n") if "cs-note" in line and "prevents it" in line]
    for flag in FLAGS[name]:
        (note,) = [line for line in notes if escape(flag) in line]
        what, _, stops = note.partition("<code>")
        assert len(what) > len('<div class="cs-note">') + 20 and escape(flag) in stops.partition("</code>")[0]
    others = {flag for other, flags in FLAGS.items() if other != name for flag in flags}
    assert not [flag for flag in others if escape(flag) in page.html], "of this format only"


def test_what_only_the_written_rows_tell_is_said_beside_the_file(filled, open_page):
    page = open_page("batch", tab="export", format="verl_rollout")
    assert "replays all rows as one batch" not in page.html
    next(button for button in page.app.button if button.label == "Export").click()
    page.app.run()
    job = page.app.session_state["export-job"]
    job.join(60)
    page.app.run()
    assert page.failures == []
    assert "replays all rows as one batch" in page.html
    assert f"data.train_batch_size={job.result.n_rows} actor_rollout_ref.rollout.n=1" in page.html
    assert [one["what"] for one in job.result.manifest["differences"] if escape(one["what"]) not in page.html] == []
