"""JSON nested in itself, wherever a body is taken: a typed error beyond what can be stored, never a 500 or 502."""

from __future__ import annotations

import pytest

from core.records import MAX_DEPTH
from tests.conftest import ServeProcess

STEP = '{"trajectory_uid":"deep","step_index":%d,"prompt_ids":[1],"response_ids":[2],"metadata":%s}'
BODIES = {
    "/api/v1/steps": '{"steps":[' + STEP + "]}",
    "/api/v1/imports": STEP,
    "/api/v1/sessions": '{"trajectory_uid":"deep-%d","metadata":%s}',
    "/api/v1/trajectories/deep/complete": '{"outcome":"x%d","metadata":%s}',
    "/api/v1/feedback": '{"trajectory_uid":"deep","score":%d,"metadata":%s}',
    "/api/v1/policy": '{"version":%d,"metadata":%s}',
    "/v1/chat/completions": '{"model":"m","messages":[{"role":"user","content":"hi"}],"n_x":%d,"metadata":%s}',
    "/v1/chat/completions#tools": '{"model":"m","messages":[{"role":"user","content":"hi"}],"user":"u%d","tools":'
    '[{"type":"function","function":{"name":"f","parameters":%s}}]}',
    "/v1/messages": '{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}],"n_x":%d,"metadata":%s}',
    "/v1/responses": '{"model":"m","input":"hi","n_x":%d,"metadata":%s}',
    "/v1/completions": '{"model":"m","prompt":"hi","n_x":%d,"extra":%s}',
}  # fmt: skip


@pytest.mark.parametrize("path", BODIES)
def test_no_depth_fails_the_service(service: ServeProcess, path: str) -> None:
    for n in (100, 190, 199, 200, 201, 240, 250, 252, 253, 254, 255, 260, 500, 1000, 1020, 1030, 100_000):
        body = BODIES[path] % (n, '{"a":' * n + "1" + "}" * n)
        answer = service.http.post(path.partition("#")[0], content=body, headers={"content-type": "application/json"})
        assert answer.status_code < 500, (n, answer.text[:200])
        if n > MAX_DEPTH:
            assert answer.status_code in (400, 422), (n, answer.text[:200])
            assert "deep" in answer.text or "JSON" in answer.text
    lists = BODIES[path] % (1, "[" * 240 + "]" * 240)
    assert service.http.post(
        path.partition("#")[0], content=lists, headers={"content-type": "application/json"}
    ).status_code in (400, 422)
