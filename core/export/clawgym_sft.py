"""Exports to ClawGym's supervised fine-tuning: the JSON lines that its ``SFTDataset`` reads.

A line has the input columns ``messages`` and ``tools``, and ``prompt, response, prompt_ids_len, response_ranges``.
``response`` is the text of the last sampled answer and ``prompt`` all text before it. ``response_ranges`` are the first
and last token of each sampled answer, counted from 0; the loader sets its mask, which is shifted by one, to 1 on
``[start - 1 : end]``.

ClawGym's own program renders a chat template and encodes the texts. Here texts and ranges come from the ids that the
engine sampled: the texts are those ids decoded. The loader encodes the texts again, so every line is encoded as the
loader does. Where that gives the sampled ids, ``exact`` is true. Where it does not, ``exact`` is false and the ranges
are those of the loader's tokens. ``input_ids`` has the sampled ids in any case.

    prompt           response
    c c c s s c c    s s s         c: context, s: sampled
    response_ranges  [[3, 4], [7, 9]]
    prompt_ids_len   7
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from core.batch.plan import Plan
from core.batch.rows import Rows
from core.errors import InvalidInput
from core.export.base import MERGE, Difference, Exporter, ExportSource, Progress, Written, tokenizers_of
from core.export.codes import json_numbers
from core.export.lines import JsonList, Line, loss_ranges, of_last_step, write_lines
from core.export.prefixes import EncodedIds
from core.export.reading import Row, json_lines, others, tokens
from core.export.sink import Sink
from core.types import EXACT_TOKEN_SOURCES

if TYPE_CHECKING:
    from core.serving.tokenizer import ChatTokenizer

LEFT = 2
"""A prompt that leaves fewer tokens than this below ``max_len`` makes ClawGym's loader drop the line."""


@dataclass(slots=True)
class _Counts:
    """What is known only after the rows are written."""

    n_null: int = 0
    n_null_tokens: int = 0
    n_cut: int = 0
    n_inexact: int = 0
    n_encoded: int = 0


@dataclass(frozen=True, slots=True)
class _Writer:
    """Makes lines. ``eos`` is the text of the tokenizer's end token, ``max_len`` the loader's longest line."""

    plan: Plan
    source: ExportSource
    tokenizer: ChatTokenizer
    eos: str
    max_len: int
    counts: _Counts = field(default_factory=_Counts)

    def lines(self, rows: Rows) -> Line:
        """The lines of some rows."""
        ids = EncodedIds(rows, json_numbers)
        names = ("prompt_uid", "trajectory_uid", "step_uid", "trajectory_reward")
        groups, owners, uids, rewards = (of_last_step(self.plan, rows, name) for name in names)
        sources = self.plan.steps["token_source"].to_pylist()
        borders = np.searchsorted(rows.row_of_step, np.arange(len(rows) + 1)).tolist()
        slices, begins = list(rows.slices()), rows.begins.tolist()
        texts: dict[str, Mapping[str, Any]] = {}

        def line(i: int) -> Mapping[str, Any]:
            low, high = borders[i], borders[i + 1]
            row, loss = rows.ids[slices[i]].tolist(), rows.loss[slices[i]]
            last = begins[high - 1] - slices[i].start
            sampled = all(sources[place] in EXACT_TOKEN_SOURCES for place in rows.steps[low:high].tolist())
            step = _step(self.source, texts, owners[i], uids[i])
            return {
                "messages": step["messages"],
                "tools": None if step["tools"] is None else json.dumps(step["tools"], ensure_ascii=False),
                **self._texts(row, loss, last, sampled),
                "reward": rewards[i],
                "prompt_uid": groups[i],
                "trajectory_uid": owners[i],
                "step_uid": uids[i],
                "input_ids": JsonList([ids.part(i)]),
            }

        return line

    def _texts(self, row: list[int], loss: np.ndarray, last: int, sampled: bool) -> dict[str, Any]:
        """ClawGym's columns of a row whose last answer begins at ``last``."""
        ranges = loss_ranges(loss)
        prompt, response = self._decoded(row[:last]), self._decoded(row[last:])
        n_prompt, loaded = last, _as_loaded(self.tokenizer, self.eos, prompt + response)
        exact = loaded[: len(row)] == row
        if not exact:
            edges = np.unique(np.concatenate([[0], ranges.flatten(), [last, len(row)]])).tolist()
            pieces = [self.tokenizer.encode(self._decoded(row[a:b])) for a, b in pairwise(edges)]
            places = dict(zip(edges, np.cumsum([0, *map(len, pieces)]).tolist(), strict=True))
            joined = [one for piece in pieces for one in piece]
            ranges = np.array([[places[a], places[b]] for a, b in ranges.tolist()], dtype=np.int64).reshape(-1, 2)
            n_prompt = places[last]
            if loaded[: len(joined)] != joined:
                # A token of the loader spans the border of an answer: no range fits.
                prompt = ""
        inclusive = (ranges - np.array([0, 1])).tolist()
        n_prompt = min(n_prompt, self.max_len)
        trains = bool(prompt and response) and n_prompt < self.max_len - LEFT
        self.counts.n_inexact += trains and not exact
        self.counts.n_encoded += trains and not sampled
        self.counts.n_cut += trains and len(loaded) > self.max_len
        self.counts.n_null += not trains
        self.counts.n_null_tokens += 0 if trains else int(loss.sum())
        return {
            "prompt": prompt if trains else None,
            "response": response,
            "prompt_ids_len": n_prompt,
            "response_ranges": inclusive,
            "exact": exact and sampled,
        }

    def _decoded(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special=False)


def _as_loaded(tokenizer: ChatTokenizer, eos: str, text: str) -> list[int]:
    """The ids that ClawGym's loader makes of a line's text."""
    text = text.rstrip("\n")
    return tokenizer.encode(text if text.endswith(eos) else f"{text} {eos}")


def _step(source: ExportSource, texts: dict[str, Mapping[str, Any]], owner: str, uid: str) -> Mapping[str, Any]:
    """Messages of a step, its answer included, and its tools. ``texts`` keeps those of one trajectory."""
    if uid not in texts:
        texts.clear()
        for step in source.trajectory(owner)["steps"]:
            before, answer = step["messages"], step["response_message"]
            messages = None if before is None or answer is None else [*before, {"role": "assistant", **answer}]
            texts[step["step_uid"]] = {"messages": messages, "tools": step["tools"]}
    return texts[uid]


def write(plan: Plan, source: ExportSource, sink: Sink, settings: Mapping[str, str], progress: Progress) -> Written:
    """Write the file, line by line.

    Raises:
        InvalidInput: the steps' tokenizer is not at hand, or ``max_len`` is no number.
    """
    tokenizer = _tokenizer(plan, source, settings["tokenizer"])
    writer = _Writer(plan, source, tokenizer, _end_token(tokenizer), _max_len(settings["max_len"]))
    written = write_lines(plan, source, sink, settings, progress, writer.lines)
    counts = writer.counts
    known = (
        (
            counts.n_inexact,
            "lines are encoded to other ids than were sampled: their ranges are those of the loader's tokens",
            "filter lines by exact",
        ),
        (counts.n_encoded, "lines have ids that no engine sampled: they are texts, encoded", "recipe.token_sources"),
        (
            counts.n_null,
            "lines have no prompt and are dropped by the loader: it is empty, reaches max_len - 2, or an answer's "
            "border is inside a token",
            "recipe.max_prompt_tokens, options.max_len",
        ),
        (
            counts.n_cut,
            "lines are longer than max_len: the loader cuts them and ends them with the end token",
            f"recipe.token_budget: {writer.max_len}",
        ),
    )
    extra = tuple(Difference.counted(n, what, flag) for n, what, flag in known if n)
    return replace(
        written, n_loss_tokens=written.n_loss_tokens - counts.n_null_tokens, differences=(*written.differences, *extra)
    )


SHOWN = ("messages", "tools", "prompt", "response", "prompt_ids_len", "response_ranges", "input_ids")
"""Fields of a line that ``read`` gives as tokens, or that hold the same as texts."""


def read(data: bytes, settings: Mapping[str, str]) -> Iterator[Row]:
    """The lines as ClawGym's loader encodes them; one that it drops has its sampled ids and no loss."""
    from core.serving.tokenizer import load_tokenizer

    folder, max_len = settings["tokenizer"], _max_len(settings["max_len"])
    tokenizer = load_tokenizer(Path(folder).expanduser() if folder else None)
    eos = _end_token(tokenizer)
    for row in json_lines(data):
        dropped = row["prompt"] is None
        ids = row["input_ids"] if dropped else _as_loaded(tokenizer, eos, row["prompt"] + row["response"])[:max_len]
        mask = np.zeros(len(ids), dtype=np.bool_)
        for first, last in [] if dropped else row["response_ranges"]:
            mask[first : last + 1] = True
        yield Row([tokens(ids, mask)], fields={**others(row, *SHOWN), "dropped by the loader": dropped})


def _tokenizer(plan: Plan, source: ExportSource, folder: str) -> ChatTokenizer:
    """The tokenizer that made the ids."""
    from core.serving.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(Path(folder).expanduser() if folder else None)
    hashes = [one for one in tokenizers_of(plan, source)["hashes"] if one is not None]
    if hashes and hashes != [tokenizer.hash]:
        others = ", ".join(one[:12] for one in hashes if one != tokenizer.hash)
        what = f"of {folder}" if folder else "that is shipped"
        raise InvalidInput(
            f"the ids were made by the tokenizer {others}, and the one {what} is {tokenizer.hash[:12]}",
            field="options.tokenizer",
            hint="name the folder with the model's tokenizer.json and chat_template.jinja",
        )
    if not folder and not hashes:
        raise InvalidInput(
            "the tokenizer of these steps is unknown, and ClawGym's lines are texts",
            field="options.tokenizer",
            hint="name the folder with the model's tokenizer.json and chat_template.jinja",
        )
    return tokenizer


def _end_token(tokenizer: ChatTokenizer) -> str:
    """``eos_token`` of the tokenizer's settings; without settings, its first end token."""
    path = tokenizer.directory / "tokenizer_config.json"
    try:
        named = json.loads(path.read_text(encoding="utf-8")).get("eos_token")
    except OSError:
        named = None
    except (ValueError, AttributeError) as error:
        raise InvalidInput(
            f"{path} is not a JSON object", field="options.tokenizer", hint="restore the file"
        ) from error
    text = named.get("content") if isinstance(named, dict) else named
    if isinstance(text, str) and text:
        return text
    if not tokenizer.end_ids:
        raise InvalidInput(
            f"{path} names no end token", field="options.tokenizer", hint="the file with eos_token belongs beside it"
        )
    return tokenizer.decode(tokenizer.end_ids[:1], skip_special=False)


def _max_len(text: str) -> int:
    if not text.isdecimal() or int(text) <= LEFT:
        raise InvalidInput(
            f"max_len is {text!r}", field="options.max_len", hint="tokens, more than 2; ClawGym's is 65536"
        )
    return int(text)


def differences(plan: Plan, settings: Mapping[str, str]) -> Sequence[Difference]:
    """Differences in tokens and lengths."""
    return (
        Difference("ClawGym's loader encodes the texts again", "exact: true in every line"),
        Difference("ClawGym's loader cuts lines at its longest", f"--max_len {settings['max_len']}"),
    )


def load_command(name: str) -> str:
    """A command that loads the file with ``datasets``, as ClawGym's training does."""
    return (
        'python -c "from datasets import load_dataset; '
        f"print(load_dataset('json', data_files='{name}', split='train'))\"  # then SFTDataset(..., multiturn=True)"
    )


EXPORTER = Exporter(
    name="clawgym_sft",
    title="ClawGym SFT (JSONL)",
    description="Conversations with prompt, response and response_ranges for ClawGym's SFTDataset; texts are the "
    "sampled ids decoded. tokenizer: the model's folder; empty: the shipped tokenizer, if it made the ids",
    suffix=".jsonl",
    write=write,
    read=read,
    load_command=load_command,
    choices={"merge": tuple(reversed(MERGE["merge"]))},
    values={"tokenizer": "", "max_len": "65536"},
    differences=differences,
    imitates=True,
    by_group=True,
)
