"""Scripts that the browser loads by their own address and keeps: bundles that are too large to send with a component.

Streamlit sends a component's script with every change of its data, and serves ``.js`` files of ``studio/static`` as
plain text, which browsers do not run. So these have a route of their own, behind the same middleware as the pages.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_PATH = "studio-bundles/codemirror.js"


@cache
def _script() -> tuple[bytes, str]:
    script = (Path(__file__).parent / "assets" / "codemirror.js").read_bytes()
    return script, hashlib.sha256(script).hexdigest()


def codemirror_address() -> str:
    """The address of the editor's bundle below the pages' address; another content has another address."""
    return f"{_PATH}?v={_script()[1][:16]}"


async def _codemirror(_: Request) -> Response:
    return Response(
        _script()[0], media_type="text/javascript", headers={"cache-control": "max-age=31536000, immutable"}
    )


ROUTES = (Route(f"/{_PATH}", _codemirror),)
"""For ``st.App``."""
