"""Values to text: human units, an em dash for unknown. Pure functions; clocks are arguments."""

from __future__ import annotations

import html
import math
import re
from datetime import datetime
from typing import Any, TypeGuard

DASH = "—"


def escape(value: Any) -> str:
    """Text made safe for HTML; None is the dash."""
    return DASH if value is None else html.escape(str(value), quote=True)


_MARKUP = re.compile(r"(^-|[\\`*_{}\[\]()<>#+.!|~:$&@=])")
# Markdown turns an address into a link although its characters are escaped; a zero-width word joiner prevents it.
_ADDRESS = re.compile(r"(https?|ftp|mailto|xmpp|www)(?=[:.])|(?<=\S)(?=@\S)", re.IGNORECASE)
_WORD_JOINER = "\u2060"


def escape_markdown(value: Any) -> str:
    """Text with its Markdown escaped, for labels, help and toasts; None is the dash.

    Images, links, colours, icons and formulas are shown as text. For larger bodies use ``st.html`` with ``escape``.
    """
    if value is None:
        return DASH
    line = " ".join(str(value).split())
    return _MARKUP.sub(r"\\\1", _ADDRESS.sub(lambda match: match[0] + _WORD_JOINER, line))


_ORDER_NAMES = dict(
    zip(
        "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
        ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"),
        strict=True,
    )
)
_ORDER = re.compile(f"[{''.join(_ORDER_NAMES)}]")


def caption_html(value: Any) -> str:
    """A line of captured text as HTML, in the small grey type of a caption; characters that reorder it are named."""
    return f'<div class="cs-quiet">{_ORDER.sub(lambda match: f"⟨{_ORDER_NAMES[match[0]]}⟩", escape(value))}</div>'


def _known(value: float | None) -> TypeGuard[float]:
    return not (value is None or (isinstance(value, float) and math.isnan(value)))


def count(value: int | None) -> str:
    """A count with thousands separators: 12345678 reads 12,345,678."""
    return f"{value:,.0f}" if _known(value) else DASH


def compact(value: float | None) -> str:
    """A large number in three digits and a unit: 1234567 reads 1.23 M.

    >>> compact(999), compact(1234), compact(1234567), compact(3.98e17), compact(None)
    ('999', '1.23 k', '1.23 M', '398 P', '—')
    """
    if not _known(value):
        return DASH
    size = abs(value)
    for limit, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{_digits(value / limit)} {unit}"
    return f"{value:,.0f}" if float(value).is_integer() else _digits(value)


def _digits(value: float) -> str:
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def counted(value: int | None, noun: str, plural: str | None = None) -> str:
    """A count with its noun.

    >>> counted(1, "row"), counted(1200, "row"), counted(2, "trajectory", "trajectories")
    ('1 row', '1,200 rows', '2 trajectories')
    """
    return f"{count(value)} {noun if value == 1 else plural or noun + 's'}"


def bytes_text(value: int | None) -> str:
    """Bytes in binary units.

    >>> bytes_text(512), bytes_text(1536), bytes_text(3 << 30)
    ('512 B', '1.5 KiB', '3.0 GiB')
    """
    if not _known(value):
        return DASH
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def percent(part: float | None, total: float | None = 1.0) -> str:
    """``part`` as a percentage of ``whole``; the dash when ``whole`` is 0 or unknown.

    >>> percent(0.314), percent(1, 3), percent(1, 0), percent(9999, 10000), percent(1, 1_000_000)
    ('31.4 %', '33.3 %', '—', '99.9 %', '0.1 %')
    """
    if not _known(part) or not _known(total) or not total:
        return DASH
    share = 100 * part / total
    if share in (0.0, 100.0):
        return f"{share:.0f} %"
    # Nearly all is not all, and hardly any is not none.
    return f"{min(max(share, 0.1), 99.9) if 0 < share < 100 else share:.1f} %"


def seconds(value: float | None) -> str:
    """A duration in the unit a person would use.

    >>> seconds(0.0123), seconds(1.5), seconds(75), seconds(7300)
    ('12 ms', '1.50 s', '1 min 15 s', '2 h 1 min')
    """
    if not _known(value):
        return DASH
    if value < 1:
        ms = value * 1000
        return f"{ms:.1f} ms" if 0 < ms < 10 else f"{ms:.0f} ms"
    if value < 60:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60)} min"


def number(value: float | None, digits: int = 3) -> str:
    """A real number with at most ``digits`` decimals, without an exponent."""
    if not _known(value):
        return DASH
    return f"{value:,.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:,.0f}"


def ago(at: float | datetime | None, now: float) -> str:
    """The time since ``at``, in one unit.

    >>> ago(100.0, 100.4), ago(40.0, 100.0), ago(None, 1.0)
    ('now', '1 min ago', '—')
    """
    if at is None:
        return DASH
    moment = at.timestamp() if isinstance(at, datetime) else at
    age = now - moment
    if age < 1:
        return "now"
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if age < limit:
            return f"{int(age // unit)} {name} ago"
    return f"{int(age // 86400)} d ago"


def short_uid(value: str | None, length: int = 12) -> str:
    """A uid short enough for a table; show the full one in a tooltip or the URL."""
    if value is None:
        return DASH
    return value if len(value) <= length else f"{value[: length - 5]}…{value[-4:]}"


def uid_html(value: str | None, *, href: str | None = None, length: int = 12) -> str:
    """A shortened uid as HTML, the full uid in its tooltip."""
    chip = f'<code class="cs-uid" title="{escape(value)}">{escape(short_uid(value, length))}</code>'
    return f'<a href="{escape(href)}" target="_self">{chip}</a>' if href else chip
