"""What an engine supports, learned from its answers: extra request fields, and streams without losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cachetools import LRUCache

from core.gateway.engines.flavours import Flavour, prompt_text
from core.tokens import extract_tokens

AUTO: Final = "auto"
WHOLE: Final = "whole"
RELAY: Final = "relay"
STREAMING: Final = (AUTO, WHOLE, RELAY)
"""How an agent's stream is made: decided by the engine's flavour, from the whole answer, or from the engine's stream.
"""

ASK_AGAIN_S: Final = 300.0
_MAX_REMEMBERED: Final = 1024


class CapabilityFallback:
    """Which set of extra request fields an engine accepts, per dialect and model. Falls back to fewer after a refusal.

    Args:
        findings: the engine's; receives the result of the first success of each kind.
    """

    def __init__(self, findings: dict[str, Any], clock: Callable[[], float]) -> None:
        self._findings = findings
        self._clock = clock
        self._levels: LRUCache[tuple[str, str], tuple[int, float]] = LRUCache(_MAX_REMEMBERED)

    def level(self, where: str, model: str) -> int:
        """Index of the set to try first: the one that worked before, or the fullest. ``where`` names the kind of
        request.
        """
        level, until = self._levels.get((where, model), (0, math.inf))
        return level if self._clock() < until else 0

    def remember(
        self,
        where: str,
        dialect: str,
        model: str,
        asks: Sequence[Mapping[str, Any]],
        level: int,
        added: Sequence[str],
        answer: Any,
        echoed: bool = False,
    ) -> None:
        """Note a success."""
        key = (where, model)
        known = self._levels.get(key)
        if known is not None and known[0] <= level:
            return
        # A refusal may concern that one request, so only the fullest set is remembered without expiry.
        self._levels[key] = (level, math.inf if level == 0 else self._clock() + ASK_AGAIN_S)
        tokens = extract_tokens(answer, 0, dialect, echoed=echoed) if isinstance(answer, dict) else None
        several = len({name for _, name in self._levels}) > 1
        self._findings[f"{where}:{model}" if several else where] = {
            "requested": list(added),
            "refused": sorted(set(asks[0]) - set(asks[level])),
            "token_ids": tokens is not None and tokens.response_ids is not None,
            "prompt_token_ids": tokens is not None
            and (tokens.prompt_ids is not None or prompt_text(answer) is not None),
            "logprobs": tokens is not None and tokens.response_logprobs is not None,
        }


class StreamPolicy:
    """Whether an engine's own stream may be relayed to the agent.

    In ``auto`` mode the flavour decides, until a stream of the engine lost tokens: its token counts show that, and from
    then on calls of that kind use whole answers.

    Args:
        mode: one of ``STREAMING``.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._reasons: dict[str, str] = {}

    def relays(self, flavour: Flavour, version: str | None, kind: str) -> bool:
        """Whether to request a stream."""
        if self.mode == AUTO:
            return kind not in self._reasons and flavour.streams(kind, version)
        return self.mode == RELAY

    def use_whole(self, kind: str, reason: str) -> None:
        """Use whole answers for a kind of call from now on."""
        self._reasons[kind] = reason

    def forget(self) -> None:
        """Forget everything; the engine was restarted."""
        self._reasons.clear()

    def status(self, flavour: Flavour, version: str | None) -> dict[str, str]:
        """``{"mode": ...}``, and for each kind of call how it is streamed and why."""
        modes = {"mode": self.mode}
        for kind in KINDS:
            how = RELAY if self.relays(flavour, version, kind) else WHOLE
            why = self._reasons.get(kind) if self.mode == AUTO else None
            modes[kind] = f"{how}: {why}" if why else how
        return modes


def lost_tokens(answer: Mapping[str, Any], dialect: str) -> str | None:
    """What a stream lacks, judged by its own token counts; None if nothing is missing."""
    choices = [extract_tokens(answer, index, dialect) for index in range(len(answer["choices"]))]
    ids = [tokens.response_ids for tokens in choices]
    if None in ids:
        return "its stream has no ids"
    usage = answer.get("usage")
    n_tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    n_ids = sum(len(known) for known in ids if known is not None)
    if isinstance(n_tokens, int) and n_tokens != n_ids:
        return f"its stream has {n_ids} ids for {n_tokens} tokens"
    return next((tokens.mismatch for tokens in choices if tokens.mismatch is not None), None)


TOOLS: Final = "chat with tools"
KINDS: Final = ("chat", TOOLS, "completions")
"""Kinds of calls whose streams may differ."""


def stream_kind(dialect: str, body: Mapping[str, Any]) -> str:
    """The kind of a call."""
    return TOOLS if dialect == "chat" and body.get("tools") else dialect


def asks_of_call(asks: Sequence[Mapping[str, Any]], *, echo: bool) -> Sequence[Mapping[str, Any]]:
    """The sets of extra fields for one call. An engine that echoes omits the prompt if ids are requested."""
    if not echo:
        return asks
    less = [{name: value for name, value in ask.items() if name != "return_token_ids"} for ask in asks]
    return [ask for number, ask in enumerate(less) if ask not in less[:number]]


def streaming_line(streaming: Mapping[str, str]) -> str:
    """How an engine's streams are made, in one line: ``streams: its own; chat with tools: whole``."""
    kinds = {kind: streaming[kind] for kind in KINDS if kind in streaming}
    if not kinds or all(how == WHOLE for how in kinds.values()):
        return "streams: made from the whole answer"
    others = [f"{kind}: {how}" for kind, how in kinds.items() if how != RELAY]
    return "; ".join(["streams: its own", *others])
