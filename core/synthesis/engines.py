"""What asks the models of a run: calls through the gateway, captured in the channel ``synthesis``."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from core.client import StudioClient
from core.errors import StudioError
from core.rewards.base import Unscored
from core.scoring.judge import GatewayJudge, JudgeSettings
from core.scoring.prices import price_of
from core.synthesis.asking import Engines
from core.synthesis.embedding import Embed, Embedded
from core.synthesis.settings import SynthesisSettings

CHANNEL = AGENT = "synthesis"


def gateway_engines(settings: SynthesisSettings, studio: StudioClient, tls: ssl.SSLContext | None = None) -> Engines:
    """Model name -> what asks this model through the gateway of ``studio``."""

    def engine(model: str) -> GatewayJudge:
        asked = JudgeSettings(
            model, temperature=settings.temperature, max_tokens=settings.max_tokens, timeout_s=settings.timeout_s
        )
        return GatewayJudge(studio, asked, channel=CHANNEL, agent=AGENT, tls=tls)

    return engine


def gateway_embed(settings: SynthesisSettings, studio: StudioClient) -> Embed:
    """Embeds texts by the engine of ``settings.embedding_model``, with ``POST /v1/embeddings`` of the gateway."""

    def embed(texts: Sequence[str]) -> Embedded:
        body = {"model": settings.embedding_model, "input": list(texts), "encoding_format": "float"}
        try:
            content = studio.call("POST", "/v1/embeddings", body, repeat=True)
            rows = sorted(content["data"], key=lambda one: one.get("index", 0))
            vectors = [[float(value) for value in one["embedding"]] for one in rows]
            n_tokens = (content.get("usage") or {}).get("prompt_tokens")
        except StudioError as error:
            raise Unscored("crashed", error.message) from None
        except (ValueError, LookupError, TypeError, AttributeError):
            raise Unscored("crashed", "the engine's answer is no list of embeddings") from None
        price = price_of(settings.embedding_model)
        return Embedded(vectors, n_tokens, None if price is None else price.of(n_tokens, 0))

    return embed
