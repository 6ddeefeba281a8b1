"""What the studio uses of libraries beyond their documented surface: here an upgrade that changes it fails by name.

docs/architecture.md lists the same, and pyproject.toml caps the versions.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import duckdb
import orjson
import pytest

from core.gateway.engines.base import EngineError
from core.pool.sql.check import NODES

ROOT = Path(__file__).parents[1]
PLACES = {
    "_skip_mcp_handler": "core/gateway/providers/engine.py",
    "completion_stream": "core/gateway/providers/stream.py",
    "get_optional_params": "core/gateway/providers/fields.py",
    "_scaled_dot_product_flash_attention_for_cpu": "core/tree/cascade.py",
    "httptools_impl": "core/gateway/http/protocol.py",
    "import _socket": "core/sandbox/forward.py",
}
"""Name -> the one file that may use it."""


@pytest.mark.parametrize("name", PLACES)
def test_each_is_used_in_one_file_that_the_architecture_names(name: str) -> None:
    users = {
        str(path.relative_to(ROOT))
        for folder in ("core", "studio", "pages")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(rf"\b{name}", path.read_text(encoding="utf-8"))
    }
    assert users == {PLACES[name]}
    section = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("## Library internals")[1]
    assert Path(PLACES[name]).name in section


def test_versions_are_capped() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    capped = {re.match(r"[\w-]+", one)[0] for one in declared if "<" in one or "==" in one}  # type: ignore[index]
    assert {"duckdb", "litellm", "streamlit", "torch", "uvicorn"} <= capped


def test_duckdb_tells_its_syntax_tree_as_known() -> None:
    """SQL that only reads is known by these names; another name for a node would refuse every query, or hide one."""
    query = (
        "WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM c WHERE n < 3) SELECT DISTINCT a.n FROM c AS a "
        "JOIN (SELECT 2 AS n) AS b ON a.n = b.n WHERE a.n BETWEEN 1 AND 3 AND a.n <> 7 ORDER BY 1 LIMIT 5"
    )
    cursor = duckdb.connect()
    tree = orjson.loads(cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()[0][0])
    assert tree["error"] is False
    seen: set[str] = set()

    def walk(node: object) -> None:
        if isinstance(node, dict):
            if isinstance(kind := node.get("type"), str) and "class" not in node:
                seen.add(kind)
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(tree["statements"])
    assert {"SELECT_NODE", "RECURSIVE_CTE_NODE", "BASE_TABLE", "JOIN", "SUBQUERY", "LIMIT_MODIFIER"} <= seen
    assert {kind for kind in seen if kind.endswith(("_NODE", "_MODIFIER"))} <= NODES
    refused = orjson.loads(cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", ["DELETE FROM t"]).fetchall()[0][0])
    assert refused["error"] is True, "only SELECT is told; what else there is never reaches the walk"


def test_streamlit_keeps_the_theme_under_the_known_name() -> None:
    import streamlit

    from studio.components.views import THEME_VERSION

    scripts = (Path(streamlit.__file__).parent / "static" / "static" / "js").glob("utils.*.js")
    text = "".join(path.read_text(encoding="utf-8") for path in scripts)
    assert "stActiveTheme-${window.location.pathname}" in text
    name = re.search(r"ACTIVE_THEME:`\$\{(\w+)\}-v\$\{(\w+)\}`", text)
    assert name is not None and re.search(rf"\b{name[2]}={THEME_VERSION}\b", text)
    assert {"System", "Light", "Dark"} <= set(re.findall(r"===`(\w+)`", text))


def test_uvicorns_protocol_has_what_is_overridden() -> None:
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

    from core.gateway.http.protocol import HttpProtocol

    assert STATUS_LINE[200].startswith(b"HTTP/1.1 200")
    own = {name for name, value in vars(HttpProtocol).items() if inspect.isfunction(value)}
    callbacks = {name for name in own if name.startswith("on_") or name in {"data_received", "connection_lost"}}
    assert callbacks, "no callback of the parser is overridden"
    assert {name for name in callbacks if not hasattr(HttpToolsProtocol, name)} == set()


def test_torchs_flash_kernel_takes_and_gives_what_the_cascade_expects() -> None:
    import torch

    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, 5, 8) for _ in range(3))
    out, logsumexp = flash(query, key, value, 0.0, True, scale=0.5)
    scores = (query @ key.transpose(-1, -2)) * 0.5
    scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
    torch.testing.assert_close(out, scores.softmax(-1) @ value, rtol=1e-5, atol=1e-6)
    assert sorted(logsumexp.shape) == [1, 2, 5]
    torch.testing.assert_close(logsumexp.flatten().sort().values, scores.logsumexp(-1).flatten().sort().values)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    assert len(backward._schema.returns) == 3


def test_litellm_has_what_is_asked_of_it() -> None:
    import litellm
    from litellm import CustomStreamWrapper

    taken = inspect.signature(litellm.utils.get_optional_params).parameters
    assert {"model", "custom_llm_provider", "drop_params", "messages"} <= taken.keys()
    assert "completion_stream" in inspect.signature(CustomStreamWrapper.__init__).parameters
    source = inspect.getsource(litellm.main)
    assert '"_skip_mcp_handler"' in source, "tools would be looked through for servers that LiteLLM calls itself"
    assert issubclass(litellm.exceptions.Timeout, Exception)
    assert not issubclass(EngineError, litellm.exceptions.Timeout)
