"""The prompts of a run, and the form that changes them."""

from __future__ import annotations

import difflib

import streamlit as st

from core.synthesis import SynthesisRun
from core.synthesis.templates import shipped
from studio import kit
from studio.kit.url_choices import list_choice


def prompts_view(run: SynthesisRun) -> None:
    """The prompt in the URL as a form, and what differs from the shipped text."""
    known, made = shipped(), run.templates()
    labels = {name: f"{name}{'  ·  changed' if made[name].text != known[name].text else ''}" for name in known}
    name = list_choice("Prompt", labels, "prompt", label_visibility="collapsed")
    one = made[name]
    places = ", ".join(f"{{{{{place}}}}}" for place in sorted(known[name].places))
    st.caption(kit.escape_markdown(f"Placeholders: {places}. SHA-256 {one.sha256[:16]}…, stored with every row."))
    with st.form(f"prompt-{name}-{one.sha256[:12]}", border=False):
        text = st.text_area("Text", one.text, height=440, label_visibility="collapsed")
        with st.container(horizontal=True, gap="small"):
            save = st.form_submit_button("Save", icon=":material/save:", type="primary")
            restore = st.form_submit_button(
                "Restore the shipped text", icon=":material/restart_alt:", disabled=one.text == known[name].text
            )
    if save or restore:
        with kit.error_boundary():
            run.write_prompt(name, None if restore else text)
            st.rerun()
    st.caption(
        "A change applies from the next start or resume. Existing rows stay as they are; run them again in their stage."
    )
    if one.text != known[name].text:
        kit.section("Difference from the shipped text")
        lines = difflib.unified_diff(known[name].text.splitlines(), one.text.splitlines(), "shipped", "this run",
                                     lineterm="")  # fmt: skip
        st.code("\n".join(lines), language="diff", wrap_lines=True)
