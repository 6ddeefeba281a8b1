"""Tests of the shell: origins of settings, opening failures, the error boundary, live charts."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

import studio
from core import service as core_service
from core.config import Settings
from core.pool.query import views
from studio import lifecycle
from studio.charts import distributions, rates
from studio.nav import DEFAULT_PAGE, PAGES
from studio.widgets.settings import provenance


def test_every_page_has_its_file():
    assert DEFAULT_PAGE in PAGES
    for info in PAGES.values():
        assert info.path.is_file()


def test_origin_of_settings(tmp_path, monkeypatch):
    toml = tmp_path / "studio.toml"
    toml.write_text('channel = "val"\npool_threads = 3\n')
    environ = {"CLAW_STUDIO_CONFIG": str(toml), "CLAW_STUDIO_POOL_THREADS": "4"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    settings = Settings(data_dir=tmp_path)
    rows = {row.name: row for row in provenance.setting_rows(settings, environ)}
    assert (rows["channel"].origin, rows["channel"].value) == ("studio.toml", "val")
    assert (rows["pool_threads"].origin, rows["pool_threads"].value) == ("environment", 4)
    assert rows["data_dir"].origin == "argument"
    assert rows["host"].origin == "default"
    assert list(rows) == list(Settings.model_fields)


def test_folder_sizes_count_bytes(tmp_path):
    settings = Settings(data_dir=tmp_path)
    settings.journal_dir.mkdir()
    (settings.journal_dir / "w0-000").write_bytes(b"x" * 1000)
    settings.pool_path.write_bytes(b"y" * 30)
    sizes = {part.name: (part.n_files, part.n_bytes) for part in provenance.folder_sizes(settings)}
    assert sizes["Journal"] == (1, 1000)
    assert sizes["Pool"] == (1, 30)
    assert sizes["Exports"] == (0, 0)


def test_a_service_that_can_not_open_shows_the_mend(tmp_path, monkeypatch, open_page):
    monkeypatch.setenv("CLAW_STUDIO_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("CLAW_STUDIO_PORT", "not a port")
    lifecycle.open_service()
    try:
        assert core_service.current() is None
        page = open_page("collect")
        assert "<code>port</code>" in page.html
        assert "studio.toml" in page.html
        assert not page.app.exception
    finally:
        monkeypatch.setenv("CLAW_STUDIO_PORT", "0")
        lifecycle.open_service()
        lifecycle.close_service()
    assert lifecycle.failure() is None


def test_the_error_boundary_keeps_the_rest_of_the_page():
    def script():
        import streamlit as st

        from core.errors import InvalidInput
        from studio import kit

        with kit.error_boundary():
            raise InvalidInput("bad <value>", field="where", hint="write it otherwise")
        with kit.error_boundary():
            raise KeyError("surprise")
        st.text("still here")

    app = AppTest.from_function(script).run()
    bodies = "\n".join(element.proto.body for element in app.get("html"))
    assert "<code>where</code>" in bodies and "write it otherwise" in bodies and "bad &lt;value&gt;" in bodies
    assert any("KeyError" in block.value and "Traceback" in block.value for block in app.code)
    assert app.text[0].value == "still here"
    assert not app.exception


def drawn(html: str, tone: str) -> list[float]:
    """Heights of the bars of one tone, as shares of the axis times its top."""
    top = max(float(text.replace("k", "e3")) for text in re.findall(r'<span style="bottom:[^"]+">([^<]+)</span>', html))
    return [float(height) * top / 100 for height in re.findall(rf'class="{tone}" style="height:([\d.]+)%"', html)]


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=60))
def test_call_rate_draws_every_call(counts):
    series = [
        {"at": 1000 + place, "calls": fine + failed, "errors": failed} for place, (fine, failed) in enumerate(counts)
    ]
    html = rates.call_rate(series)
    assert drawn(html, "good") == pytest.approx([fine for fine, _ in counts if fine], abs=0.11)
    assert drawn(html, "bad") == pytest.approx([failed for _, failed in counts if failed], abs=0.11)
    ElementTree.fromstring(html)


@given(st.lists(st.floats(0, 5000), max_size=200))
def test_latencies_count_every_call(values):
    assert sum(rates.latency_bins(values)) == len(values)
    html = rates.latencies(values)
    assert sum(drawn(html, "series3")) == pytest.approx(len(values), abs=0.3)
    ElementTree.fromstring(html)


@given(st.floats(1e-6, 1e12))
def test_the_axis_is_tight(value):
    top = rates.axis_top(value)
    assert value * (1 - 1e-9) <= top <= 2 * value * (1 + 1e-9)


def test_funnel_names_counts_and_shares():
    made = distributions.funnel([("Captured", 200), ("Ready", 50)], notes=["a", "b"])
    assert list(made.data[0].x) == [200, 50]
    assert made.layout.annotations[1].text == "50  ·  25.0 %"


def test_charts_bear_no_data():
    for html in (rates.latencies([]), rates.call_rate([]), rates.token_rate([])):
        ElementTree.fromstring(html)
    assert list(distributions.funnel([("Captured", 0)], notes=[""]).data[0].x) == [0]


def test_settings_frozen_fields_stay_listed():
    with pytest.raises(ValueError):
        Settings(nonsense=1)


def test_a_reload_of_pages_never_takes_the_service_away():
    from streamlit.watcher.folder_black_list import FolderBlackList

    config = tomllib.loads((Path(studio.__file__).parent / ".streamlit" / "config.toml").read_text())
    ignored = FolderBlackList(config["server"]["folderWatchBlacklist"])
    assert ignored.is_blacklisted(core_service.__file__)
    assert ignored.is_blacklisted(views.__file__)
    assert not ignored.is_blacklisted(lifecycle.__file__)


def test_the_pages_listen_on_loopback_only():
    config = tomllib.loads((Path(studio.__file__).parent / ".streamlit" / "config.toml").read_text())
    assert config["server"]["address"] == "127.0.0.1"
    assert config["runner"]["postScriptGC"] is False
