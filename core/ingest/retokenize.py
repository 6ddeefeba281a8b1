"""Token ids for answers that came as text only, by the model's tokenizer.

They are not what was sampled (``token_source`` says ``retokenized``, and there are no log-probs), but good to read, to
count, and to imitate. Which tokenizer belongs to which model is a setting.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.dialects.exact import exact_json
from core.errors import StudioError
from core.types import Step, StepStatus, TokenSource

if TYPE_CHECKING:
    from core.serving.tokenizer import ChatTokenizer

_TEXT_ONLY = frozenset({TokenSource.NONE, TokenSource.BYTES})
_log = logging.getLogger(__name__)


class Retokenizer:
    """Fills steps without ids.

    Args:
        folders: model name or pattern (``gpt-*``) -> folder with ``tokenizer.json`` and ``chat_template.jinja``; the
            first that fits counts.
    """

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = dict(folders)
        self._refused: set[str] = set()

    def fill(self, step: Step) -> Step:
        """The step with ids, or as it is: ids known, no tokenizer for its model, or nothing to encode."""
        if step.response_ids is not None or step.token_source not in _TEXT_ONLY or step.status != StepStatus.OK:
            return step
        folder = self._folder(step.model)
        if folder is None or step.messages is None or step.response_message is None:
            return step
        from core.serving.tokenizer import load_tokenizer

        try:
            tokenizer = load_tokenizer(folder)
            prompt, response = encode(tokenizer, step)
        except StudioError as error:
            # Logged once: every call of this model would log it again.
            if str(folder) not in self._refused:
                self._refused.add(str(folder))
                _log.warning("calls of %s stay text: %s", step.model, error.message)
            return replace(step, metadata={**step.metadata, "not_retokenized": error.message})
        return replace(
            step,
            prompt_ids=prompt,
            response_ids=response,
            response_logprobs=None,
            token_source=TokenSource.RETOKENIZED,
            tokenizer_hash=tokenizer.hash,
        )

    def _folder(self, model: str | None) -> Path | None:
        if model is None:
            return None
        return next((folder for pattern, folder in self._folders.items() if fnmatchcase(model, pattern)), None)


def encode(tokenizer: ChatTokenizer, step: Step) -> tuple[list[int], list[int]]:
    """Prompt ids ``[P]`` and response ids ``[R]``; the answer ends with its end-of-turn token unless it was cut off.

    Raises:
        InvalidInput: the chat template refuses the messages.
    """
    messages = [template_message(message) for message in step.messages or ()]
    assert step.response_message is not None
    if step.dialect == "completions":
        prompt = "".join(str(message.get("content") or "") for message in messages)
        return tokenizer.encode(prompt), tokenizer.encode(str(step.response_message.get("content") or ""))
    prompt_text = tokenizer.render(messages, step.tools)
    answer = {"role": "assistant", **template_message(step.response_message)}
    rendered = tokenizer.render([*messages, answer], step.tools, add_generation_prompt=False)
    if rendered.startswith(prompt_text):
        response = tokenizer.encode(rendered[len(prompt_text) :])
    else:
        # A template that renders an answer in history otherwise than where it is generated.
        response = tokenizer.encode(str(answer.get("content") or ""))
    ends = [place for place, token in enumerate(response) if token in tokenizer.special_ids]
    if ends and not _follows(tokenizer, response[ends[-1] + 1 :]):
        response = response[: ends[-1] + (0 if step.finish_reason == "length" else 1)]
    return tokenizer.encode(prompt_text), response


def _follows(tokenizer: ChatTokenizer, ids: Sequence[int]) -> bool:
    """Whether anything but white space follows."""
    return bool(tokenizer.decode(ids).strip())


def template_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as chat templates want it: arguments of calls as objects, text parts as text."""
    changed = dict(message)
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        changed["tool_calls"] = [_template_call(call) for call in calls]
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        changed["content"] = "".join(str(part.get("text") or "") for part in content)
    return changed


def _template_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = exact_json(function["arguments"] or "{}")
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}
