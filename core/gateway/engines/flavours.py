"""Kinds of engines: how they identify themselves, which extra fields make them return ids, which streams are complete.

Verified with the real servers in ``tests/real_engines``. Their answers are in ``tests/gateway/engines/recorded``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Ask = Mapping[str, Any]

RAW: Final = "raw"
"""Log-probs of the model itself: the softmax of its logits, before temperature and all other sampling settings."""
PROCESSED: Final = "processed"
"""Log-probs after temperature and penalties, before top-k and top-p: closer to the sampling distribution."""

_PLAIN_CHAT: Final[Sequence[Ask]] = ({"return_token_ids": True, "logprobs": True}, {"logprobs": True}, {})
# In completions logprobs is a number, and several engines read 0 as none.
_PLAIN_COMPLETIONS: Final[Sequence[Ask]] = ({"return_token_ids": True, "logprobs": 1}, {"logprobs": 1}, {})


@dataclass(frozen=True, slots=True)
class Flavour:
    """One kind of engine.

    Attributes:
        name: in findings, records and steps.
        title: on pages.
        owners: its values of ``owned_by`` in the model list.
        version: (path beside ``/v1``, field) of its version, tried in order.
        chat, completions: sets of extra request fields, fullest first; the last one is empty.
        streams_ids: kinds of calls (``chat``, ``chat with tools``, ``completions``) whose stream has the same ids and
            log-probs as the whole answer.
        streams_since: the first version whose streams do so; older and unknown versions use whole answers.
        logprobs: the default kind of log-probs; None: unknown.
        measurable: whether a start option decides about ``logprobs``, so that it is measured.
        tokenize: fields of ``POST /tokenize`` that make it encode a rendered prompt like the engine does.
        count: (path, field) of the token count of a chat request.
        continues: whether it can continue the last message (``continue_final_message``).
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

    def field_sets(self, dialect: str) -> Sequence[Ask]:
        """The sets of extra fields for one dialect, fullest first."""
        return self.completions if dialect == "completions" else self.chat

    def streams(self, kind: str, version: str | None) -> bool:
        """Whether streams of that kind of call are complete."""
        since = self.streams_since.get(kind)
        return kind in self.streams_ids and (since is None or (version is not None and _numbers(version) >= since))


_SGLANG: Final = {"return_token_ids": True, "return_meta_info": True, "return_prompt_token_ids": True}
# __verbose holds the whole request again; response_fields limits it to what is needed.
_LLAMACPP: Final = {"return_tokens": True, "verbose": True, "response_fields": ["tokens", "prompt"]}

OPENAI: Final = Flavour("openai", "OpenAI-compatible")
"""Any other engine with this API; tried with all extra fields, then with fewer."""

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
    # Earlier versions lose the ids of tool calls in streams (vllm#27482).
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
    # Chat refuses each of the three in a stream; completions stream ids.
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
    # Without top_logprobs each token comes with twenty others.
    chat=({**_LLAMACPP, "logprobs": True, "top_logprobs": 1}, {"logprobs": True, "top_logprobs": 1}, {}),
    completions=({**_LLAMACPP, "logprobs": 1}, {"logprobs": 1}, {}),
    # It refuses log-probs in a stream with tools, and a chat may have tools.
    streams_ids=frozenset({"completions"}),
    logprobs=RAW,
    tokenize={"add_special": True, "parse_special": True},
    count=("/v1/chat/completions/input_tokens", "input_tokens"),
)

OLLAMA: Final = Flavour(
    "ollama",
    "Ollama",
    owners=frozenset({"library"}),
    # It ignores unknown fields, and other servers may answer at this address.
    version=(("/api/version", "version"),),
    logprobs=RAW,
)

TRANSFORMERS: Final = Flavour(
    "transformers",
    "transformers serve",
    # It refuses unknown fields and ignores known ones, so nothing is requested.
    chat=({},),
    completions=({},),
)

FLAVOURS: Final[Mapping[str, Flavour]] = {
    flavour.name: flavour for flavour in (VLLM, SGLANG, LLAMACPP, OLLAMA, TRANSFORMERS, CLAW_STUDIO, OPENAI)
}

_TRANSFORMERS_REFUSAL: Final = "Unexpected fields in the request"


def by_owner(cards: Sequence[Mapping[str, Any]]) -> Flavour | None:
    """The flavour by the owners in a model list; None if they are unknown."""
    owners = {card.get("owned_by") for card in cards}
    return next((flavour for flavour in FLAVOURS.values() if flavour.owners & owners), None)


def by_refusal(body: Any) -> Flavour | None:
    """The flavour by the wording of a refusal; None if it is unknown."""
    detail = body.get("detail") if isinstance(body, Mapping) else None
    return TRANSFORMERS if isinstance(detail, str) and detail.startswith(_TRANSFORMERS_REFUSAL) else None


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``0.32.0rc1`` is (0, 32, 0)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, match[1].split("."))) if match else ()


TEMPERATURES: Final = (0.25, 2.0)
"""Far enough apart to tell log-probs before and after temperature from each other. vLLM allows at most 2."""
_SAME: Final = 0.2
"""Nats; above the rounding differences of one forward pass in low precision."""


def logprobs_question(model: str, temperature: float) -> dict[str, Any]:
    """A completions request for the first token's highest log-prob at a temperature."""
    return {"model": model, "prompt": "1", "max_tokens": 1, "temperature": temperature, "logprobs": 1}


def logprobs_mode(answers: Sequence[Any]) -> str | None:
    """``raw`` or ``processed``, from the answers to ``logprobs_question`` at both temperatures; None if undecided."""
    best = [_likeliest(answer) for answer in answers]
    if len(best) != len(TEMPERATURES) or any(value is None for value in best):
        return None
    cold, hot = (value for value in best if value is not None)
    if abs(cold - hot) >= _SAME:
        return PROCESSED
    # A log-prob near 0 is the same at every temperature, so nothing follows from it.
    return RAW if hot < -_SAME else None


def _likeliest(answer: Any) -> float | None:
    try:
        values = answer["choices"][0]["logprobs"]["top_logprobs"][0].values()
        return max(float(value) for value in values)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def prompt_text(answer: Mapping[str, Any]) -> str | None:
    """The prompt as llama.cpp rendered it, if it was requested."""
    verbose = answer.get("__verbose")
    prompt = verbose.get("prompt") if isinstance(verbose, Mapping) else None
    return prompt if isinstance(prompt, str) else None


def findings_line(findings: Mapping[str, Any]) -> str:
    """Probe results in one line: ``vLLM 0.32.0 · raw log-probs, measured · chat: ids, prompt ids``."""
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
            parts.append(f"{name}: {_returned_fields(finding)}")
    known = {"flavour", "version", "logprobs", "measured", "models"}
    rest = {k: v for k, v in findings.items() if k not in known and not isinstance(v, Mapping)}
    parts += [name if value is True else f"{name}: {value}" for name, value in rest.items() if value]
    return " · ".join(parts)


def _returned_fields(finding: Mapping[str, Any]) -> str:
    words = {"token_ids": "ids", "prompt_token_ids": "prompt ids", "logprobs": "log-probs"}
    returned = [word for name, word in words.items() if finding.get(name)]
    refused = finding.get("refused") or ()
    return ", ".join(returned or ["text only"]) + (f" (refused: {', '.join(refused)})" if refused else "")
