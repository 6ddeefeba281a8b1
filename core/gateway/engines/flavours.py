"""The kinds of engines: how each names itself, what it is asked for so that it tells ids, what it can't stream.

Held against the real servers in ``tests/real_engines``; what they answered is kept in ``tests/gateway/recorded``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Ask = Mapping[str, Any]

RAW: Final = "raw"
"""Log-probs of the model as it is: the softmax of its logits, before temperature and every other sampling setting."""
PROCESSED: Final = "processed"
"""Log-probs after temperature and penalties (before top-k and top-p): nearer to what was sampled from."""

_PLAIN_CHAT: Final[Sequence[Ask]] = ({"return_token_ids": True, "logprobs": True}, {"logprobs": True}, {})
# In completions logprobs is a number, and several engines read 0 as "none".
_PLAIN_COMPLETIONS: Final[Sequence[Ask]] = ({"return_token_ids": True, "logprobs": 1}, {"logprobs": 1}, {})


@dataclass(frozen=True, slots=True)
class Flavour:
    """One kind of engine.

    Attributes:
        name: as findings, records and steps spell it.
        title: as pages spell it.
        owners: what it writes into ``owned_by`` of its model list.
        version: (path beside ``/v1``, field) that tell its version, tried in order.
        chat, completions: fields to add to a request of that dialect, most telling first; the last adds nothing.
        streams_ids: kinds of calls (``chat``, ``chat with tools``, ``completions``) whose stream tells ids and
            log-probs as the whole answer does.
        streams_since: the first version that was seen to do so; older or unknown ones are not trusted with it.
        logprobs: which log-probs it gives unless started otherwise; None: unknown.
        measurable: whether the start decides about ``logprobs``, so that it is worth measuring.
        tokenize: fields of ``POST /tokenize`` that make it encode a rendered prompt as it encodes its own.
        count: (path, field) that tell how many tokens a chat request is.
        continues: whether it can go on with the last message (``continue_final_message``).
    """

    name: str
    title: str
    owners: frozenset[str] = frozenset()
    version: Sequence[tuple[str, str]] = ()
    chat: Sequence[Ask] = _PLAIN_CHAT
    completions: Sequence[Ask] = _PLAIN_COMPLETIONS
    streams_ids: frozenset[str] = frozenset()
    streams_since: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    logprobs: str | None = None
    measurable: bool = False
    tokenize: Mapping[str, Any] = field(default_factory=dict)
    count: tuple[str, str] = ("/tokenize", "count")
    continues: bool = False

    def asks(self, dialect: str) -> Sequence[Ask]:
        """What to add in one dialect, most telling first."""
        return self.completions if dialect == "completions" else self.chat

    def streams(self, kind: str, version: str | None) -> bool:
        """Whether a stream of that kind of call loses nothing."""
        since = self.streams_since.get(kind)
        return kind in self.streams_ids and (since is None or (version is not None and _numbers(version) >= since))


_SGLANG: Final = {"return_token_ids": True, "return_meta_info": True, "return_prompt_token_ids": True}
# The drawer holds the whole request again; response_fields keeps in it what is asked for.
_LLAMACPP: Final = {"return_tokens": True, "verbose": True, "response_fields": ["tokens", "prompt"]}

OPENAI: Final = Flavour("openai", "OpenAI-compatible")
"""Whatever else speaks the API; asked for everything, and for less where it refuses."""

CLAW_STUDIO: Final = Flavour(
    "claw-studio",
    "Claw Studio",
    owners=frozenset({"claw-studio"}),
    streams_ids=frozenset({"chat", "chat with tools", "completions"}),
    logprobs=RAW,
    continues=True,
)

VLLM: Final = Flavour(
    "vllm",
    "vLLM",
    owners=frozenset({"vllm"}),
    version=(("/version", "version"),),
    streams_ids=frozenset({"chat", "chat with tools", "completions"}),
    # Earlier ones lost the ids of tool calls on the way (vllm#27482).
    streams_since={"chat with tools": (0, 32)},
    logprobs=RAW,
    measurable=True,
    continues=True,
)

SGLANG: Final = Flavour(
    "sglang",
    "SGLang",
    owners=frozenset({"sglang"}),
    version=(("/server_info", "version"), ("/get_server_info", "version")),
    chat=({**_SGLANG, "logprobs": True}, *_PLAIN_CHAT),
    completions=({**_SGLANG, "logprobs": 1}, *_PLAIN_COMPLETIONS),
    # Chat refuses each of the three together with a stream; completions stream ids.
    streams_ids=frozenset({"completions"}),
    logprobs=PROCESSED,
    measurable=True,
    continues=True,
)

LLAMACPP: Final = Flavour(
    "llamacpp",
    "llama.cpp",
    owners=frozenset({"llamacpp"}),
    version=(("/props", "build_info"),),
    # Without top_logprobs each token would come with twenty others.
    chat=({**_LLAMACPP, "logprobs": True, "top_logprobs": 1}, {"logprobs": True, "top_logprobs": 1}, {}),
    completions=({**_LLAMACPP, "logprobs": 1}, {"logprobs": 1}, {}),
    # It refuses log-probs in a stream with tools, and a chat can't be known to have none.
    streams_ids=frozenset({"completions"}),
    logprobs=RAW,
    tokenize={"add_special": True, "parse_special": True},
    count=("/v1/chat/completions/input_tokens", "input_tokens"),
)

OLLAMA: Final = Flavour(
    "ollama",
    "Ollama",
    owners=frozenset({"library"}),
    # Fields that it does not know do no harm there, and others answer at this address as well.
    version=(("/api/version", "version"),),
    logprobs=RAW,
)

TRANSFORMERS: Final = Flavour(
    "transformers",
    "transformers serve",
    # It refuses fields that it does not know, and leaves those unheeded that it does: nothing is worth asking.
    chat=({},),
    completions=({},),
)

FLAVOURS: Final[Mapping[str, Flavour]] = {
    flavour.name: flavour for flavour in (VLLM, SGLANG, LLAMACPP, OLLAMA, TRANSFORMERS, CLAW_STUDIO, OPENAI)
}

_TRANSFORMERS_REFUSAL: Final = "Unexpected fields in the request"


def by_owner(cards: Sequence[Mapping[str, Any]]) -> Flavour | None:
    """The flavour that a model list names; None where its owners say nothing."""
    owners = {card.get("owned_by") for card in cards}
    return next((flavour for flavour in FLAVOURS.values() if flavour.owners & owners), None)


def by_refusal(body: Any) -> Flavour | None:
    """The flavour that can be told from how a request was refused."""
    detail = body.get("detail") if isinstance(body, Mapping) else None
    return TRANSFORMERS if isinstance(detail, str) and detail.startswith(_TRANSFORMERS_REFUSAL) else None


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``0.32.0rc1`` is (0, 32, 0)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, match[1].split("."))) if match else ()


TEMPERATURES: Final = (0.25, 2.0)
"""Far enough apart that log-probs after temperature can't be taken for those before it. vLLM allows no more than 2."""
_SAME: Final = 0.2
"""Nats; more than arithmetic of few bits makes of one and the same forward pass."""


def logprobs_question(model: str, temperature: float) -> dict[str, Any]:
    """A completions request whose answer tells the likeliest first token's log-prob at a temperature."""
    return {"model": model, "prompt": "1", "max_tokens": 1, "temperature": temperature, "logprobs": 1}


def logprobs_mode(answers: Sequence[Any]) -> str | None:
    """``raw`` or ``processed``, from the answers to ``logprobs_question`` at both temperatures; None: no telling."""
    best = [_likeliest(answer) for answer in answers]
    if len(best) != len(TEMPERATURES) or any(value is None for value in best):
        return None
    cold, hot = (value for value in best if value is not None)
    if abs(cold - hot) >= _SAME:
        return PROCESSED
    # A model that is certain of its token is so at every temperature: that tells nothing.
    return RAW if hot < -_SAME else None


def _likeliest(answer: Any) -> float | None:
    try:
        values = answer["choices"][0]["logprobs"]["top_logprobs"][0].values()
        return max(float(value) for value in values)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def prompt_text(answer: Mapping[str, Any]) -> str | None:
    """The prompt as llama.cpp rendered it, where it was asked for it."""
    drawer = answer.get("__verbose")
    prompt = drawer.get("prompt") if isinstance(drawer, Mapping) else None
    return prompt if isinstance(prompt, str) else None


def findings_line(findings: Mapping[str, Any]) -> str:
    """What was probed, in one line for people: ``vLLM 0.32.0 · raw log-probs, measured · chat: ids, prompt ids``."""
    parts: list[str] = []
    flavour = FLAVOURS.get(str(findings.get("flavour")))
    if flavour is not None or findings.get("flavour"):
        title = flavour.title if flavour is not None else str(findings["flavour"])
        parts.append(f"{title} {findings['version']}" if findings.get("version") else title)
    if findings.get("logprobs"):
        parts.append(f"{findings['logprobs']} log-probs, {'measured' if findings.get('measured') else 'by default'}")
    models = findings.get("models")
    if models:
        parts.append(f"models: {', '.join(map(str, models))}" if isinstance(models, list) else f"models {models}")
    for name, finding in findings.items():
        if isinstance(finding, Mapping):
            parts.append(f"{name}: {_told(finding)}")
    known = {"flavour", "version", "logprobs", "measured", "models"}
    rest = {k: v for k, v in findings.items() if k not in known and not isinstance(v, Mapping)}
    parts += [name if value is True else f"{name}: {value}" for name, value in rest.items() if value]
    return " · ".join(parts)


def _told(finding: Mapping[str, Any]) -> str:
    words = {"token_ids": "ids", "prompt_token_ids": "prompt ids", "logprobs": "log-probs"}
    returned = [word for name, word in words.items() if finding.get(name)]
    refused = finding.get("refused") or ()
    return ", ".join(returned or ["text only"]) + (f" (refused: {', '.join(refused)})" if refused else "")
