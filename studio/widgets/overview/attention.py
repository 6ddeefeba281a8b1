"""What needs attention now, each line a link to its rows."""

from __future__ import annotations

from core.batch.attention import Attention, attention
from core.batch.leases import DEFAULT_CHANNEL
from core.service import Service
from studio import kit, state
from studio.kit.html_tables import html_table
from studio.widgets.plans.group_credit import group_recipe

NOUNS = {"steps": ("step", "steps"), "trajectories": ("trajectory", "trajectories"), "groups": ("group", "groups")}


def show_attention(service: Service) -> None:
    """Draw the problems, the most serious first; without any, say so."""
    kit.section("Needs attention", "click a problem to see its rows")
    problems = attention(service.pool, group_recipe(DEFAULT_CHANNEL)[0])
    if not problems:
        kit.empty_state("Nothing needs attention", "No failed calls, loops, equal rewards or unscored trajectories.")
        return
    html_table(["Problem", "Count", "What to do"], [line(one) for one in problems], numeric=(1,))


def line(one: Attention) -> tuple[str, str, str]:
    """A row of the table, as HTML."""
    address = state.link("inspect", level=one.level, **state.view_to_query(one.view))
    return (
        f'<a href="{kit.escape(address)}" target="_self" title="{kit.escape(one.what)}">{kit.escape(one.name)}</a>',
        kit.escape(kit.counted(one.n, *NOUNS[one.level])),
        kit.escape(one.then),
    )
