"""Makes edited answers: a person's message in the policy's own chat template, as token ids after the captured prompt.

The captured prompt stays as it was sampled from. Of the conversation with the edited answer, rendered by the template,
only the part after the generation prompt is encoded. Which tokenizer belongs to a step is decided by its hash, or,
where the engine did not report one, by encoding the captured answer again: the ids must be the same.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.config import Settings
from core.errors import InvalidInput, StudioError
from core.ingest.retokenize import template_message
from core.pool import Pool
from core.pool.edits import Edit
from core.types import Annotation, AnnotationKind

if TYPE_CHECKING:
    from core.serving.tokenizer import ChatTokenizer

EMPTY_THOUGHT = re.compile(r"<think>\s*</think>\s*$")
"""Generation prompts of models that think may end with it where they are told not to."""
TAIL_TOKENS = 64
FIELDS = ("role", "content", "reasoning_content", "tool_calls")
"""Fields of an edited answer; others of the captured one, such as log-probs of an API, are not about the text."""


def save_edit(
    pool: Pool,
    settings: Settings,
    step_uid: str,
    message: Mapping[str, Any],
    *,
    author: str,
    source: str,
    at: float,
    note: str | None = None,
) -> Edit:
    """Encode an edited answer and append it as the step's newest edit; returns it.

    Args:
        pool: the pool.
        settings: name the tokenizers.
        step_uid: the step whose answer is edited.
        message: the edited answer: ``content``, ``reasoning_content`` and ``tool_calls`` as in chat completions.
        author, source, note: of the annotation.
        at: UTC seconds.

    Raises:
        NotFound: no such step.
        InvalidInput: see ``encoded``.
    """
    value = encoded(pool.steps.get(step_uid), message, settings)
    annotation = Annotation(AnnotationKind.EDIT, value, author, source, at, step_uid=step_uid, note=note)
    pool.labels.annotate([annotation], label=f"edit on step {step_uid}")
    return pool.edits.get(value["edit_uid"])


def encoded(step: Mapping[str, Any], message: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The value of an ``edit`` annotation (``core.pool.state.editvalue``).

    Args:
        step: as ``pool.steps.get`` gives it.
        message: the edited answer.
        settings: name the tokenizers.

    Raises:
        InvalidInput: the step has no texts or ids, its tokenizer or template is not known here, the message is empty,
            is the captured one, names a tool that was not offered, has arguments that are no JSON object or holds
            special tokens.
    """
    edited = checked_message(message, step)
    if step.get("prompt_ids") is None or step.get("messages") is None or step.get("response_message") is None:
        raise InvalidInput(
            "The step has no token ids or no messages, so its answer can't be edited.",
            field="step_uid",
            hint="For engines without token ids, set `tokenizers` in the settings before the calls are captured.",
        )
    tokenizer = tokenizer_of(step, settings)
    for name, text in _texts(edited):
        _refuse_special(tokenizer, name, text)
    text = answer_text(tokenizer, step, edited)
    ids = tokenizer.encode(text)
    if tokenizer.decode(ids, skip_special=False) != text:
        raise InvalidInput(
            "The tokenizer does not spell the edited text exactly.",
            field="message",
            hint="It may normalise Unicode: write the characters in their composed form.",
        )
    from core.serving.tokenizer import template_hash

    return {
        "edit_uid": f"edit-{os.urandom(16).hex()}",
        "message": edited,
        "response_ids": ids,
        "text": text,
        "tokenizer_hash": tokenizer.hash,
        "template_hash": template_hash(tokenizer.directory),
    }


def checked_message(message: Mapping[str, Any], step: Mapping[str, Any]) -> dict[str, Any]:
    """The edited answer with its fields in order, empty ones left out. InvalidInput names what does not fit."""
    if unknown := [name for name in message if name not in FIELDS]:
        raise InvalidInput(
            f"An edited answer has no field {unknown[0]!r}.", field=f"message.{unknown[0]}", hint=", ".join(FIELDS)
        )
    for name in ("content", "reasoning_content"):
        if not isinstance(message.get(name) or "", str):
            raise InvalidInput(f"{name} is a text.", field=f"message.{name}", hint="Only texts can be edited.")
    calls = [_checked_call(call, place, step) for place, call in enumerate(message.get("tool_calls") or ())]
    edited: dict[str, Any] = {"role": "assistant", "content": message.get("content") or ""}
    if message.get("reasoning_content"):
        edited["reasoning_content"] = message["reasoning_content"]
    if calls:
        edited["tool_calls"] = calls
    if not edited["content"].strip() and not calls:
        raise InvalidInput("The edited answer is empty.", field="message.content")
    if edited == captured_message(step.get("response_message") or {}):
        raise InvalidInput("The edited answer is the captured one.", field="message")
    return edited


def captured_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A captured answer in the form of an edited one, so that a person can begin with it.

    Raises:
        InvalidInput: it holds parts that are not text.
    """
    content = template_message(message).get("content") or ""
    if not isinstance(content, str):
        raise InvalidInput("The answer holds parts that are not text, and can't be edited.", field="step_uid")
    captured: dict[str, Any] = {"role": "assistant", "content": content}
    if isinstance(thought := message.get("reasoning_content") or message.get("reasoning"), str):
        captured["reasoning_content"] = thought
    if calls := message.get("tool_calls"):
        captured["tool_calls"] = [
            {
                "id": call.get("id") or f"call_{place}",
                "type": "function",
                "function": {
                    "name": (call.get("function") or {}).get("name") or "",
                    "arguments": (call.get("function") or {}).get("arguments") or "{}",
                },
            }
            for place, call in enumerate(calls)
        ]
    return captured


def text_difference(captured: str, edited: str) -> list[tuple[str, str]]:
    """What an edit changed: runs of text as (``same``, ``removed`` or ``added``, text), in order, by words.

    The runs that are not ``added`` spell the captured text, those that are not ``removed`` the edited one.
    """
    before, after = (re.findall(r"\s+|\w+|[^\w\s]", text) for text in (captured, edited))
    runs: list[tuple[str, str]] = []
    for kind, low, high, low_after, high_after in difflib.SequenceMatcher(
        None, before, after, autojunk=False
    ).get_opcodes():
        if kind == "equal":
            runs.append(("same", "".join(before[low:high])))
            continue
        if high > low:
            runs.append(("removed", "".join(before[low:high])))
        if high_after > low_after:
            runs.append(("added", "".join(after[low_after:high_after])))
    return runs


def captured_text(step: Mapping[str, Any], settings: Settings) -> str:
    """The captured answer as its tokens spell it. InvalidInput as ``tokenizer_of``."""
    return tokenizer_of(step, settings).decode([int(i) for i in step["response_ids"]], skip_special=False)


def tokenizer_of(step: Mapping[str, Any], settings: Settings) -> ChatTokenizer:
    """The tokenizer and chat template that a step was made with.

    Raises:
        InvalidInput: none of the settings' is.
    """
    from core.serving.tokenizer import load_tokenizer

    named = step.get("tokenizer_hash")
    for folder in _folders(settings):
        try:
            tokenizer = load_tokenizer(folder)
            if named == tokenizer.hash or (named is None and _encodes(tokenizer, step)):
                return tokenizer
        except StudioError:
            continue
    raise InvalidInput(
        f"The tokenizer of {step.get('model') or 'this model'} is not known here, so the edited text has no token ids.",
        field="settings.tokenizers",
        hint="Name the folder of its tokenizer.json and chat_template.jinja: tokenizers = { 'MODEL' = 'FOLDER' }",
    )


def answer_text(tokenizer: ChatTokenizer, step: Mapping[str, Any], message: Mapping[str, Any]) -> str:
    """The text that follows the step's prompt when the model answers with this message, end-of-turn token included.

    Raises:
        InvalidInput: the chat template refuses the messages, writes them in another way after the generation prompt
            than in history, or is not the one that the step's prompt was made with.
    """
    answer = template_message(message)
    if step.get("dialect") == "completions":
        ids = step.get("response_ids")
        last = [] if ids is None or not len(ids) else [int(ids[-1])]
        ended = bool(last) and last[0] in tokenizer.end_ids
        return str(answer["content"]) + (tokenizer.decode(last, skip_special=False) if ended else "")
    messages, tools = [template_message(one) for one in step["messages"]], step.get("tools")
    before = tokenizer.render(messages, tools, add_generation_prompt=False)
    opening = tokenizer.render(messages, tools)[len(before) :]
    rendered = tokenizer.render([*messages, answer], tools, add_generation_prompt=False)
    turn = rendered[len(before) :]
    shared = opening[: next((i for i, (a, b) in enumerate(zip(opening, turn, strict=False)) if a != b), len(opening))]
    if not rendered.startswith(before) or (opening != shared and not EMPTY_THOUGHT.fullmatch(opening[len(shared) :])):
        raise InvalidInput(
            "The chat template writes an answer in another way after the generation prompt than in history.",
            field="message",
            hint="Its edited text can't be placed after the captured prompt.",
        )
    prompt = tokenizer.decode([int(i) for i in step["prompt_ids"][-TAIL_TOKENS:]], skip_special=False)
    if not prompt.endswith(opening) and not EMPTY_THOUGHT.sub("", prompt).endswith(shared):
        raise InvalidInput(
            "The captured prompt does not end as the chat template begins an answer.",
            field="settings.tokenizers",
            hint="The folder's chat_template.jinja is not the one of the engine.",
        )
    return _to_end_of_turn(tokenizer, turn[len(shared) :])


def _to_end_of_turn(tokenizer: ChatTokenizer, text: str) -> str:
    """The text up to its end-of-turn token, where only white space follows that."""
    ends = [text.rfind(special) + len(special) for special in _specials(tokenizer) if special in text]
    last = max(ends, default=len(text))
    return text if text[last:].strip() else text[:last]


def _encodes(tokenizer: ChatTokenizer, step: Mapping[str, Any]) -> bool:
    """Whether the tokenizer makes the captured ids of the captured answer."""
    ids = step.get("response_ids")
    if ids is None or not len(ids):
        return False
    captured = tokenizer.encode(answer_text(tokenizer, step, captured_message(step["response_message"])))
    return [int(i) for i in ids] in (captured, captured[:-1])


def _folders(settings: Settings) -> Iterator[Path | None]:
    """Folders of tokenizers; None is the shipped one."""
    yield None
    if settings.local_model_dir is not None:
        yield settings.local_model_dir
    yield from settings.tokenizers.values()


def _checked_call(call: Any, place: int, step: Mapping[str, Any]) -> dict[str, Any]:
    at = f"message.tool_calls[{place}]"
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"].strip():
        raise InvalidInput("A tool call has a function with a name.", field=f"{at}.function.name")
    name, arguments = function["name"].strip(), function.get("arguments")
    offered = [str((tool.get("function") or tool).get("name")) for tool in step.get("tools") or ()]
    if offered and name not in offered:
        raise InvalidInput(
            f"The step offers no tool {name!r}.", field=f"{at}.function.name", hint=f"One of {', '.join(offered[:12])}"
        )
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    try:
        is_object = isinstance(json.loads(text), dict)
    except ValueError:
        is_object = False
    if not is_object:
        raise InvalidInput("The arguments of a tool call are a JSON object.", field=f"{at}.function.arguments")
    uid = call.get("id")
    return {
        "id": uid if isinstance(uid, str) and uid else f"call_{place}",
        "type": "function",
        "function": {"name": name, "arguments": text},
    }


def _texts(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The texts of an edited answer that a person wrote, with the field of each."""
    for name in ("content", "reasoning_content"):
        yield f"message.{name}", str(message.get(name) or "")
    for place, call in enumerate(message.get("tool_calls") or ()):
        for name, text in call["function"].items():
            yield f"message.tool_calls[{place}].function.{name}", str(text)


def _specials(tokenizer: ChatTokenizer) -> Sequence[str]:
    return [tokenizer.token_bytes[i].decode("utf-8", "replace") for i in sorted(tokenizer.special_ids)]


def _refuse_special(tokenizer: ChatTokenizer, name: str, text: str) -> None:
    special = next((one for one in _specials(tokenizer) if one and one in text), None)
    if special is not None:
        raise InvalidInput(
            f"The text holds {special}, which is a special token of the model.",
            field=name,
            hint="Leave it out: the chat template sets it where it belongs.",
        )
