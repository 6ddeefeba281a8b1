"""Engines on the Settings page: pause, add, test and remove; errors name the field."""

from __future__ import annotations


def test_pause_and_resume(service, open_page):
    page = open_page("settings")
    page.app.button(key="pause-engine").click().run()
    assert page.failures == [] and service.engines.paused == {"engine"}
    assert ">paused<" in page.html and page.app.button(key="pause-engine").label == "Resume"
    page.app.button(key="pause-engine").click().run()
    assert service.engines.paused == frozenset()


def test_add_test_and_remove(service, open_page):
    page = open_page("settings")
    fields = {"name": "a", "address": "http://127.0.0.1:9/v1", "models": "a-*, b", "key": ""}
    for name, value in fields.items():
        page.app.text_input(key=f"engine-add-{name}").set_value(value)
    next(one for one in page.app.button if one.label == "Add").click().run()
    assert page.failures == [] and service.engine_changes.added == ("a",)
    assert [one["models"] for one in service.engines.status()][1] == ["a-*", "b"]
    assert page.app.text_input(key="engine-add-name").value == ""
    page.app.button(key="test-a").click().run()
    assert page.failures == [] and "can&#x27;t be reached" in page.html
    page.app.button(key="remove-a").click().run()
    assert page.failures == [] and service.engine_changes.added == ()


def test_a_wrong_field_is_named_and_the_form_keeps_its_values(service, open_page):
    page = open_page("settings")
    page.app.text_input(key="engine-add-name").set_value("a")
    page.app.text_input(key="engine-add-address").set_value("somewhere")
    page.app.text_input(key="engine-add-models").set_value("m")
    next(one for one in page.app.button if one.label == "Add").click().run()
    assert "<code>base_url</code>" in page.html and service.engine_changes.added == ()
    assert page.app.text_input(key="engine-add-name").value == "a"
