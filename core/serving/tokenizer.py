"""Loads a tokenizer and its chat template from a folder: the shipped one, or any with the same two files.

Only ``tokenizers`` and ``jinja2`` are imported, so that an engine starts in a fraction of a second.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from core.errors import InvalidInput

ASSETS = Path(__file__).parent / "assets"
END_OF_TEXT = "<|endoftext|>"
END_OF_TURN = "<|im_end|>"
TURN_START = "<|im_start|>"
TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"
SEGMENT_CACHE = 8192


def tokenizer_hash(directory: Path | None = None) -> str:
    """SHA-256 (hex) of the folder's ``tokenizer.json``: equal hashes mean equal ids for equal text."""
    return hashlib.sha256((Path(directory or ASSETS) / TOKENIZER_FILE).read_bytes()).hexdigest()


def template_hash(directory: Path | None = None) -> str:
    """SHA-256 (hex) of the folder's chat template."""
    return hashlib.sha256((Path(directory or ASSETS) / TEMPLATE_FILE).read_bytes()).hexdigest()


class ChatTokenizer:
    """Text to ids and back, and messages to a prompt. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer

        self.directory = directory
        try:
            self.hash = tokenizer_hash(directory)
            self._tokenizer = Tokenizer.from_str((directory / TOKENIZER_FILE).read_text(encoding="utf-8"))
            self._template = _compile((directory / TEMPLATE_FILE).read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidInput(
                f"no tokenizer in {directory}: {error}",
                field="directory",
                hint=f"the folder needs {TOKENIZER_FILE} and {TEMPLATE_FILE}",
            ) from error
        self.n_vocab: int = self._tokenizer.get_vocab_size()
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(i for i, token in added.items() if token.special)
        self.token_bytes: list[bytes] = _token_bytes(self._tokenizer, added)
        self.end_ids: tuple[int, ...] = tuple(
            i for i in (self.token_id(END_OF_TURN), self.token_id(END_OF_TEXT)) if i is not None
        )
        self._segment = lru_cache(SEGMENT_CACHE)(self._encode_segment)

    def token_id(self, token: str) -> int | None:
        """Id of a token by its name; None if the vocabulary lacks it."""
        token_id: int | None = self._tokenizer.token_to_id(token)
        return token_id

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``; names of special tokens in it become those tokens.

        Turns are encoded separately and cached. The turn marker is a special token, which the tokenizer splits off
        first, so the concatenated ids equal those of the whole text.
        """
        ids: list[int] = []
        start = 0
        while True:
            end = text.find(TURN_START, start + 1)
            ids += self._segment(text[start:] if end < 0 else text[start:end])
            if end < 0:
                return ids
            start = end

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of ``ids``; bytes that are not UTF-8 become U+FFFD.

        Raises:
            InvalidInput: an id outside the vocabulary.
        """
        return self.decode_bytes(ids, skip_special=skip_special).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: Sequence[int], *, skip_special: bool = True) -> bytes:
        """Bytes of ``ids``, exactly."""
        table, special = self.token_bytes, self.special_ids if skip_special else frozenset()
        try:
            return b"".join(table[i] for i in ids if i not in special)
        except IndexError:
            raise InvalidInput(f"token ids must be below {len(table)}", field="tokens") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The text that the chat template gives; ``kwargs`` are passed to the template (``chat_template_kwargs``).

        Raises:
            InvalidInput: the template refuses the messages.
        """
        from jinja2 import TemplateError

        try:
            rendered: str = self._template.render(
                messages=messages, tools=tools or None, add_generation_prompt=add_generation_prompt, **kwargs
            )
        except (TemplateError, TypeError) as error:
            raise InvalidInput(f"the chat template refuses the messages: {error}", field="messages") from error
        return rendered

    def _encode_segment(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)


class Detokenizer:
    """Decodes ids one by one; bytes of an incomplete character are held back."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        import codecs

        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        """Add an id; returns the text that is final (may be empty)."""
        if token_id in self._tokenizer.special_ids:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes[token_id])

    def close(self) -> str:
        """The rest: U+FFFD for bytes of a character that was not completed."""
        return self._decoder.decode(b"", final=True)


def load_tokenizer(directory: Path | None = None) -> ChatTokenizer:
    """The tokenizer of a model folder; by default the shipped one. Cached per folder."""
    return _load(Path(directory or ASSETS).resolve())


def render_chat(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    directory: Path | None = None,
    add_generation_prompt: bool = True,
    **kwargs: Any,
) -> str:
    """Render a conversation with a folder's template (the shipped one by default)."""
    return load_tokenizer(directory).render(messages, tools, add_generation_prompt=add_generation_prompt, **kwargs)


@lru_cache(8)
def _load(directory: Path) -> ChatTokenizer:
    return ChatTokenizer(directory)


def _compile(source: str) -> Any:
    """Compile a template in a sandbox with the filters and functions that transformers provides."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(source)


def _token_bytes(tokenizer: Any, added: Mapping[int, Any]) -> list[bytes]:
    """Bytes of every id. Byte-level vocabularies write each byte as one printable character."""
    alphabet = _byte_alphabet()
    table: list[bytes] = []
    for i in range(tokenizer.get_vocab_size()):
        if i in added:
            table.append(str(added[i].content).encode())
        else:
            token = tokenizer.id_to_token(i) or ""
            table.append(bytes(alphabet[c] for c in token))
    return table


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's mapping of bytes to printable characters: printable bytes map to themselves, others to U+0100 and up."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}
