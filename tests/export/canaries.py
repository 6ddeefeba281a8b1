"""Secrets in every spelling and place, and a search through exported files that knows nothing of the project's own.

Spellings are made by the standard library. Files are opened by the libraries that their readers use; every text, key
and byte in them is searched, and every list of whole numbers is spelled out with the tokenizer's bytes as well.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow.parquet as pq
import torch
from safetensors.numpy import load_file

from core.serving.tokenizer import load_tokenizer, tokenizer_hash
from core.types import Step

T0 = 1_700_000_000.0
KEY = "sk-" + "Qz7PvT4nWc1YkR8sJd2hLxB6fGm3Ea9u"
MAIL = "canary.bird@coalmine.example"
TOKENIZER = load_tokenizer()


def _base64(align: int, *, url: bool = False, padded: bool = True) -> Callable[[str], str]:
    def made(secret: str) -> str:
        encode = base64.urlsafe_b64encode if url else base64.b64encode
        text = encode(("~?>"[:align] + secret + " <- so").encode()).decode()
        return text if padded else text.rstrip("=")

    return made


SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda s: s,
    "u": lambda s: "".join(f"\\u{ord(c):04x}" for c in s),
    "x": lambda s: "".join(f"\\x{ord(c):02X}" for c in s),
    "at": lambda s: s.replace("@", "\\u0040").replace("-", "\\u002d"),
    "twice": lambda s: json.dumps(json.dumps("".join(f"\\u{ord(c):04x}" for c in s)))[1:-1],
    "percent": lambda s: "".join(f"%{ord(c):02x}" for c in s),
    "url": lambda s: quote(s, safe="").replace("-", "%2D"),
    "html": lambda s: "".join(f"&#{ord(c)};" for c in s),
    "hexhtml": lambda s: "".join(f"&#x{ord(c):x};" for c in s),
    "no_width": lambda s: "\u200b".join(s),
    "hex": lambda s: s.encode().hex(),
    "HEX": lambda s: s.encode().hex().upper(),
    **{f"b64_{k}": _base64(k) for k in range(3)},
    **{f"b64url_{k}": _base64(k, url=True, padded=False) for k in range(3)},
    "wrapped": lambda s: base64.encodebytes(
        ("some text before it, as in a file: " + s + " and after").encode()
    ).decode(),
}


def core(spelled: str) -> str:
    """The part of a spelling that can't be there unless the secret is: encodings may begin and end with other bytes."""
    return spelled if len(spelled) < 24 else spelled[6:-6]


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(arguments: str) -> dict[str, Any]:
    function = {"name": "run", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


def _in_json(text: str) -> str:
    """A text inside a JSON string, whose escapes are the text's own."""
    return text if "\\" in text else json.dumps(text)[1:-1]


PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "user": lambda s: {"messages": [message("user", f"use {s} now")]},
    "system": lambda s: {"messages": [message("system", f"{s} is yours"), message("user", "go")]},
    "parts": lambda s: {"messages": [message("user", parts(f"use {s[: len(s) // 2]}", f"{s[len(s) // 2 :]} now"))]},
    "answer": lambda s: {"response": message("assistant", f"it is {s}, sir")},
    "arguments": lambda s: {"response": call(f'{{"cmd": "echo {_in_json(s)}"}}')},
    "arguments_key": lambda s: {"response": call(f'{{"{_in_json(s)}": 1}}')},
    "arguments_in_json": lambda s: {"response": call(json.dumps({"body": json.dumps({"deep": [s]})}))},
    "earlier_call": lambda s: {"messages": [message("user", "hi"), call(json.dumps({s: s})), message("tool", "ok")]},
    "tool_result": lambda s: {"messages": [message("user", "hi"), call("{}"), message("tool", f"env: K {s}\n")]},
    "tools": lambda s: {"tools": [{"type": "function", "function": {"name": "f", "description": f"with {s} !"}}]},
    "metadata": lambda s: {"metadata": {"deep": [{"note": s}]}},
    "metadata_key": lambda s: {"metadata": {s: {"n": 1}}},
    "sampling": lambda s: {"sampling": {"temperature": 1.0, "user": s}},
    "prompt_uid": lambda s: {"prompt_uid": f"task-{s}"},
}


def rendered(step: dict[str, Any]) -> str:
    """A message as a chat template writes it."""
    content = step["content"]
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    for one in step.get("tool_calls", ()):
        text += f'<tool_call>\n{{"name": "run", "arguments": {one["function"]["arguments"]}}}\n</tool_call>'
    return f"<|im_start|>{step['role']}\n{text}<|im_end|>\n"


def step_with(uid: str, prompt_uid: str, planted: dict[str, Any], *, tokens: bool = True) -> Step:
    """A step that holds what a place of ``PLACES`` gives; its tokens are those of a chat template."""
    messages = planted.get("messages", [message("user", "what is it?")])
    response = planted.get("response", message("assistant", "nothing that matters"))
    tools = planted.get("tools")
    head = f"<|im_start|>system\n{json.dumps(tools)}<|im_end|>\n" if tools else ""
    prompt_ids = TOKENIZER.encode(head + "".join(map(rendered, messages)) + "<|im_start|>assistant\n")
    response_ids = TOKENIZER.encode(rendered(response).removeprefix("<|im_start|>assistant\n"))
    return Step(
        uid, planted.get("trajectory_uid", f"t-{uid}"), planted.get("prompt_uid", prompt_uid), 0, T0,
        prompt_ids=prompt_ids if tokens else None, response_ids=response_ids if tokens else None,
        response_logprobs=[-0.5] * len(response_ids) if tokens else None, messages=messages,
        response_message=response, tools=tools, metadata=planted.get("metadata", {}), policy_version=1,
        sampling=planted.get("sampling", {"temperature": 1.0}), token_source="engine" if tokens else "none",
        tokenizer_hash=tokenizer_hash() if tokens else None, agent=planted.get("agent"), model=planted.get("model"),
    )  # fmt: skip


def held_by(path: Path, spell: Callable[[Sequence[int]], bytes]) -> Iterator[bytes]:
    """The file's bytes, every text in it, and every list of whole numbers spelled out."""
    yield path.read_bytes()
    yield from _within(_opened(path), spell)


def _opened(path: Path) -> Any:
    match path.suffix:
        case ".parquet":
            return pq.read_table(path).to_pylist()
        case ".pt":
            return torch.load(path, weights_only=True)
        case ".dp":
            return _Plain(path.open("rb")).load()
        case ".bin":
            return msgspec.msgpack.decode(path.read_bytes())
        case ".safetensors":
            return load_file(path)
        case ".jsonl":
            return [json.loads(line) for line in path.read_text().splitlines()]
        case ".json":
            return json.loads(path.read_text())
    return None


class _Anything:
    """Takes the state of an object whose class is not installed."""

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            return type(name, (_Anything,), {})


def _within(value: Any, spell: Callable[[Sequence[int]], bytes]) -> Iterator[bytes]:
    if isinstance(value, str):
        yield value.encode("utf-8", "surrogatepass")
        if value[:1] in '[{"':
            try:
                inner = json.loads(value)
            except ValueError:
                return
            if inner != value:
                yield from _within(inner, spell)
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, torch.Tensor):
        yield from _within(value.detach().cpu().numpy(), spell)
    elif isinstance(value, np.ndarray):
        if value.dtype == object:
            yield from _within(value.tolist(), spell)
        elif np.issubdtype(value.dtype, np.integer):
            yield spell(value.ravel().tolist())
            if value.dtype == np.uint8:
                yield value.tobytes()
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _within(name, spell)
            yield from _within(item, spell)
    elif isinstance(value, list | tuple | set):
        if value and all(isinstance(one, int) for one in value):
            yield spell(list(value))
        else:
            for item in value:
                yield from _within(item, spell)
    elif hasattr(value, "__dict__"):
        yield from _within(vars(value), spell)


def spelled(ids: Sequence[int]) -> bytes:
    """Bytes of ids of the shipped tokenizer."""
    table = TOKENIZER.token_bytes
    return b"".join(table[i] for i in ids if 0 <= i < len(table))
