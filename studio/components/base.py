"""Registration of components: each has one script and one style sheet in this folder, after the common ones."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import ArrayLike

HERE = Path(__file__).parent
FRAME = """<div class="frame">
</div>"""


@cache
def renderer(name: str, *shared: str) -> Any:
    """The mount call of the component whose files are ``<name>.js`` and ``<name>.css``.

    ``shared``: files of the same kind that several components use, which come before its own.
    """
    files = ("common", *shared, name)
    return st.components.v2.component(
        f"claw_studio_{name}",
        html=FRAME,
        css="".join(_source(f"{one}.css") for one in files),
        js="".join(_source(f"{one}.js") for one in files),
    )


def _source(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8") + "\n"


def mount_key(what: str, *uids: str) -> str:
    """The key of a component that belongs to these uids.

    Streamlit splits the ids of a component's events at ``__``, which uids may contain (``django__django-11099``).

    >>> mount_key("timeline", "django__django-11099")
    'timeline-f79ddff92cb26fd3'
    """
    return f"{what}-{hashlib.sha256(repr(uids).encode()).hexdigest()[:16]}"


def packed(values: ArrayLike | None, dtype: str) -> str | None:
    """A numpy array as base64 of its little-endian bytes: what ``decode`` in common.js reads. None stays None.

    >>> packed([1, 2], "int32")
    'AQAAAAIAAAA='
    """
    if values is None:
        return None
    flat = np.ascontiguousarray(np.asarray(values), dtype=np.dtype(dtype).newbyteorder("<"))
    return base64.b64encode(flat.tobytes()).decode("ascii")


def ignore() -> None:
    """The callback of a trigger whose value the page reads from the mount's result."""
