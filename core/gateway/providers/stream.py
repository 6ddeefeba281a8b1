"""A hosted provider's stream, read below LiteLLM's stream wrapper.

The wrapper loses data: it drops chunks without text and their log-probs, reports the end of only the first choice, and
reports ``stop`` for an answer that broke off. The source below it yields each of the provider's chunks in chat's shape.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

from core.errors import EngineError, EngineTimeout
from core.gateway.engines.answer import EngineStream, Finish
from core.gateway.engines.streams import StreamDeadline
from core.gateway.providers.read_counter import ReadCounter

_END = object()


def is_stream(response: Any) -> bool:
    """Whether LiteLLM returned a stream; for a provider without streams it may return the whole answer."""
    return hasattr(response, "__aiter__")


async def opened(response: Any) -> AsyncIterator[Any]:
    """The chunks of a stream: from LiteLLM's source if it is asynchronous, else from LiteLLM.

    Some providers are only called here. Raises what LiteLLM raises.
    """
    inner = getattr(response, "completion_stream", None)
    if inner is None and hasattr(response, "fetch_stream"):
        inner = await response.fetch_stream()
    source: Any = inner if hasattr(inner, "__aiter__") else response
    return aiter(source)


def retry_after(error: Exception) -> str | None:
    """The provider's ``Retry-After``, if any."""
    response = getattr(error, "response", None)
    for holder, name in ((error, "litellm_response_headers"), (error, "headers"), (response, "headers")):
        headers = getattr(holder, name, None)
        if isinstance(headers, Mapping) and isinstance(seconds := headers.get("retry-after"), str):
            return seconds
    return None


def provider_failure(litellm: Any, model: str, error: Exception, counter: ReadCounter) -> EngineError:
    """An error of a provider or of LiteLLM as an EngineError."""
    if counter.failure is not None:
        return EngineError(f"{model}: {counter.failure}")
    if isinstance(error, litellm.exceptions.Timeout):
        return EngineTimeout(f"{model} gave no answer in time")
    status = getattr(error, "status_code", None)
    # The provider's message in one line, without LiteLLM's banner.
    text = str(getattr(error, "message", "") or error) or type(error).__name__
    return EngineError(
        f"{model}: {' '.join(text.split())[:500]}", upstream_status=status if isinstance(status, int) else None
    )


class ProviderStream(EngineStream):
    """Chunks in chat's shape; ``finish_reason`` and usage follow all of them.

    Args:
        response: LiteLLM's response.
        source: from ``opened``.
        litellm: the module.
        model: ``provider/model``.
        counter: bytes read from the provider.
        stream_deadline: limits of the wait.
    """

    def __init__(
        self,
        response: Any,
        source: AsyncIterator[Any],
        *,
        litellm: Any,
        model: str,
        counter: ReadCounter,
        added: Sequence[str],
        stream_deadline: StreamDeadline,
        finish: Finish,
    ) -> None:
        super().__init__(added=added, finish=finish)
        self._response = response
        self._source = source
        self._litellm = litellm
        self._model = model
        self._counter = counter
        self._stream_deadline = stream_deadline
        self._chunks = _Chunks()

    async def batches(self) -> AsyncGenerator[list[dict[str, Any]]]:
        """One chunk at a time, as they arrive."""
        try:
            while (piece := await self._stream_deadline.wait(anext(self._source, _END))) is not _END:
                if (chunk := self._chunks.read(piece)) is not None:
                    yield [chunk]
            if last := self._chunks.last():
                yield last
        except (EngineError, GeneratorExit):
            raise
        except Exception as error:
            raise provider_failure(self._litellm, self._model, error, self._counter) from error
        finally:
            await self._response.aclose()
            self.close()


class _Chunks:
    """Converts chunks of different shapes to chat's."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._ends: dict[int, str] = {}
        self._begun: set[int] = set()
        self._usage: dict[str, Any] | None = None
        self._plain = False

    def read(self, piece: Any) -> dict[str, Any] | None:
        """The chunk; None if it has nothing but final fields."""
        if hasattr(piece, "model_dump"):
            self._plain = True
            chunk = piece.model_dump(mode="json", exclude_none=True)
        elif isinstance(piece, Mapping):
            chunk = self._of_generic(piece)
        else:
            return None
        self._usage = chunk.pop("usage", None) or self._usage
        choices = [choice for choice in chunk.pop("choices", ()) if self._has_content(choice)]
        # Some providers use a new id in each chunk.
        self._head = {**chunk, **self._head}
        return {**chunk, **self._head, "choices": choices} if choices else None

    def last(self) -> list[dict[str, Any]]:
        """The final fields that were kept for the end."""
        ends: list[dict[str, Any]] = [
            {"index": index, "delta": {}, "logprobs": None, "finish_reason": reason}
            for index, reason in sorted(self._ends.items())
        ]
        last = [{**self._head, "choices": [end]} for end in ends]
        return [*last, {**self._head, "choices": [], "usage": self._usage}] if self._usage is not None else last

    def _has_content(self, choice: dict[str, Any]) -> bool:
        index = choice.setdefault("index", 0)
        # Some providers repeat it in each chunk, so it is used at the end.
        if reason := choice.pop("finish_reason", None):
            self._ends[index] = reason
        choice["finish_reason"] = None
        delta = choice.setdefault("delta", {})
        if index not in self._begun:
            self._begun.add(index)
            delta.setdefault("role", "assistant")
            return True
        delta.pop("role", None)
        extras = choice.keys() - {"index", "delta", "finish_reason"}
        return any(value not in ("", [], {}) for value in delta.values()) or any(choice[name] for name in extras)

    def _of_generic(self, piece: Mapping[str, Any]) -> dict[str, Any]:
        """A chunk in LiteLLM's own shape, for providers without chat chunks; for others it only adds missing fields."""
        index = piece.get("index") or 0
        delta: dict[str, Any] = {}
        if piece.get("text"):
            delta["content"] = piece["text"]
        if piece.get("tool_use"):
            delta["tool_calls"] = [piece["tool_use"]]
        reason = piece.get("finish_reason") if piece.get("is_finished") and not self._plain else None
        if not delta and not reason:
            return {"usage": piece.get("usage")}
        return {"usage": piece.get("usage"), "choices": [{"index": index, "delta": delta, "finish_reason": reason}]}
