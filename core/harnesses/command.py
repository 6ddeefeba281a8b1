"""Any command line with placeholders, such as ``my-agent --url {base_url} --task {prompt}``."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from core.errors import InvalidInput
from core.harnesses.base import Harness, Job, Program, Start, find_program

NAME = "command"
PLACEHOLDERS = {
    "prompt": "the task's text",
    "base_url": "base URL for OpenAI's clients, ending with /v1",
    "anthropic_base_url": "base URL for Anthropic's clients",
    "api_key": "the attempt's session key",
    "model": "name of the model",
    "workspace": "folder of the task's files, also the working directory",
    "home": "the agent's own folder",
    "seed": "the attempt's seed",
}
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def words_of(text: str, folder: Path | None = None) -> list[str]:
    """The words of a command line.

    Args:
        folder: where the user is: files that are named relative to it get their absolute path. None: words stay.

    Raises:
        InvalidInput: a quote is not closed.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidInput(
            f"the command line can't be read: {error}", field="command", hint="close every quote, or escape it"
        ) from error
    if folder is None:
        return words
    return [_absolute(word, folder, is_program=n == 0) for n, word in enumerate(words)]


def _absolute(word: str, folder: Path, *, is_program: bool) -> str:
    """The absolute path of a file that a word names. A bare word is only taken for one if it has an ending."""
    looks_like_file = "/" in word or (not is_program and Path(word).suffix != "")
    try:
        return os.path.normpath(folder.absolute() / word) if looks_like_file and (folder / word).is_file() else word
    except (OSError, ValueError):  # too long for a path, or with a null character
        return word


def harness(command: Sequence[str], name: str = NAME) -> Harness:
    """A harness for one command line. Each word may have placeholders; other braces are kept.

    Files that it names by an absolute path can be read, such as the script in ``python /agents/mine.py {prompt}``.
    The same values are in the environment: OPENAI_API_KEY, OPENAI_BASE_URL, ANTHROPIC_AUTH_TOKEN, ANTHROPIC_BASE_URL.

    Raises:
        InvalidInput: the command is empty, or the prompt is nowhere in it.
    """
    if not command:
        raise InvalidInput("the harness command needs a command line", field="command", hint="my-agent {prompt}")
    if not any("{prompt}" in word for word in command):
        raise InvalidInput("the command line has no {prompt}", field="command", hint="my-agent --task {prompt}")

    def find() -> Program:
        program = find_program(command[0], hint="name a program of PATH, or a path")
        named = [Path(word) for word in command[1:] if word.startswith("/") and Path(word).is_file()]
        return replace(program, readable=[*program.readable, *named])

    def start(program: Program, job: Job) -> Start:
        values = {
            "prompt": job.prompt,
            "base_url": job.base_url,
            "anthropic_base_url": job.root,
            "api_key": job.api_key,
            "model": job.model,
            "workspace": str(job.workspace),
            "home": str(job.home),
            "seed": "" if job.seed is None else str(job.seed),
        }
        words = [_PLACEHOLDER.sub(lambda hit: values.get(hit[1], hit[0]), word) for word in command[1:]]
        env = {
            "OPENAI_API_KEY": job.api_key,
            "OPENAI_BASE_URL": job.base_url,
            "ANTHROPIC_AUTH_TOKEN": job.api_key,
            "ANTHROPIC_BASE_URL": job.root,
        }
        return Start([str(program.path), *words], {**program.env(), **env})

    return Harness(name, "a command line", find, start, memory_mb=256, cpu_s=2.0)
