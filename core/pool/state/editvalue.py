"""The value of an ``edit`` annotation: an answer that a person edited, and the token ids that spell it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from core.errors import InvalidInput

EDIT_UID = re.compile(r"edit-[0-9a-f]{32}")
FIELDS = ("edit_uid", "message", "response_ids", "text", "tokenizer_hash", "template_hash")
MAX_ID = 2**31 - 1


def checked_edit(value: Any) -> dict[str, Any]:
    """The value with exactly ``FIELDS``, as ``core.editing.encoded`` makes it.

    ``edit_uid`` names it, ``message`` is the edited answer, ``response_ids`` are the token ids of ``text``, the answer
    as the chat template writes it, by the tokenizer with ``tokenizer_hash`` and the template with ``template_hash``.

    Raises:
        InvalidInput: a field is missing, unknown or of another type; names it.
    """
    if not isinstance(value, Mapping) or set(value) != set(FIELDS):
        raise InvalidInput(
            f"An edit has the fields {', '.join(FIELDS)}.",
            field="value",
            hint="core.editing.encoded makes them from an edited message.",
        )
    if not isinstance(value["edit_uid"], str) or not EDIT_UID.fullmatch(value["edit_uid"]):
        raise InvalidInput("An edit's uid is edit- and 32 hexadecimal digits.", field="value.edit_uid")
    message = value["message"]
    if not isinstance(message, Mapping) or message.get("role") != "assistant":
        raise InvalidInput("An edited answer is a message of the role assistant.", field="value.message")
    ids = value["response_ids"]
    if not isinstance(ids, Sequence) or isinstance(ids, str) or not len(ids):
        raise InvalidInput("An edited answer has at least one token id.", field="value.response_ids")
    if not all(type(one) is int and 0 <= one <= MAX_ID for one in ids):
        raise InvalidInput("Token ids are integers from 0.", field="value.response_ids")
    for name in ("text", "tokenizer_hash", "template_hash"):
        if not isinstance(value[name], str) or not value[name]:
            raise InvalidInput(f"{name} is a text.", field=f"value.{name}")
    return {name: value[name] for name in FIELDS}
