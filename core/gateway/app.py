"""The gateway's routes, under ``/v1`` and under ``/{trajectory_uid}/{prompt_uid}/v1``."""

from __future__ import annotations

from starlette.routing import Route

from core.gateway.calls.capture import Capture
from core.gateway.calls.clawr1 import CHAT_TOOLS_IN_TEXT, clawr1_prefix
from core.gateway.deps import GatewayDeps
from core.gateway.queries.engine_queries import CountTokens, HealthEndpoint, ListModels, Passthrough
from core.gateway.queries.stored_responses import CancelResponse, DeleteResponse, GetResponse, ListInputItems
from core.gateway.served_dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES

__all__ = ["GatewayDeps", "create_gateway"]

PREFIXES = ("/v1", "/{trajectory_uid}/{prompt_uid}/v1")


def create_gateway(deps: GatewayDeps) -> list[Route]:
    """The routes to mount at an application's root."""
    in_text = Capture(deps, CHAT_TOOLS_IN_TEXT)
    routes = [Route(f"{clawr1_prefix()}/{CHAT_TOOLS_IN_TEXT.path}", in_text, methods=["POST"])]
    for prefix in PREFIXES:
        for dialect in (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
            routes.append(Route(f"{prefix}/{dialect.path}", Capture(deps, dialect), methods=["POST"]))
        for dialect, counter in ((MESSAGES, "messages/count_tokens"), (RESPONSES, "responses/input_tokens")):
            routes.append(Route(f"{prefix}/{counter}", CountTokens(deps, dialect), methods=["POST"]))
        stored = f"{prefix}/responses/{{response_id}}"
        routes.append(Route(stored, GetResponse(deps), methods=["GET"]))
        routes.append(Route(stored, DeleteResponse(deps), methods=["DELETE"]))
        routes.append(Route(f"{stored}/cancel", CancelResponse(deps), methods=["POST"]))
        routes.append(Route(f"{stored}/input_items", ListInputItems(deps), methods=["GET"]))
        routes.append(Route(f"{prefix}/embeddings", Passthrough(deps, "/v1/embeddings"), methods=["POST"]))
        for path in ("/tokenize", "/detokenize"):
            # Engines serve them beside /v1; clients look for them in both places.
            for place in (prefix, prefix.removesuffix("/v1")):
                routes.append(Route(f"{place}{path}", Passthrough(deps, path), methods=["POST"]))
        routes.append(Route(f"{prefix}/models", ListModels(deps), methods=["GET"]))
        # Model names contain slashes.
        routes.append(Route(f"{prefix}/models/{{model:path}}", ListModels(deps), methods=["GET"]))
    routes.append(Route("/health", HealthEndpoint(deps), methods=["GET"]))
    return routes
