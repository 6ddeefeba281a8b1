"""Redacts a selection: decides which steps are dropped and which tokens are masked, and counts the hits.

Each message is searched once per trajectory. Responses are always also searched in the text of their tokens, since an
engine's parser may have removed part of what was sampled. Tokens of prompts are searched if a message has a hit, or if
the messages are unknown. A match in a text that the patterns don't find in the tokens (a chat template may write
arguments in another way) is searched in the tokens as literal text. A step with a hit that can't be located in its
tokens is dropped, whatever the rules' action is, because it is unknown which tokens to mask.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from core.batch.source import PlanSource
from core.errors import InvalidInput
from core.pool.redaction.cleaning import over_border
from core.pool.redaction.hits import Hit, HitSummary
from core.pool.redaction.rules import Redaction
from core.pool.redaction.screening import Screening

Progress = Callable[[int, int], None]
"""Called with (trajectories read, trajectories in all)."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenText:
    """A tokenizer's vocabulary: the bytes of every id, and the id that replaces redacted tokens."""

    token_bytes: Sequence[bytes]
    mask_id: int


TokenTexts = Callable[[str | None], TokenText | None]
"""Tokenizer hash -> its vocabulary; None if it is not available."""


def no_texts(tokenizer_hash: str | None) -> TokenText | None:
    """No tokenizer is available."""
    return None


def texts_of(directory: Path | None) -> TokenTexts:
    """The tokenizer in this model folder, or the shipped one, for the steps that were made with it."""

    def find(wanted: str | None) -> TokenText | None:
        from core.serving.tokenizer import load_tokenizer

        try:
            tokenizer = load_tokenizer(directory)
        except (InvalidInput, OSError, ValueError):
            return None
        if wanted != tokenizer.hash:
            return None
        return TokenText(tokenizer.token_bytes, tokenizer.encode("*")[0])

    return find


@dataclass(slots=True)
class Match:
    """A text that a rule matched.

    Attributes:
        places: where: ``prompt``, ``answer``, ``other fields``, ``name``, or ``tokens`` (in no text, but in what the
            tokens spell).
        n_steps, n_trajectories: with it; a prompt has the texts of the steps before it.
        step_uid, trajectory_uid: the first of them.
    """

    step_uid: str
    trajectory_uid: str
    places: set[str] = field(default_factory=set)
    n_steps: int = 0
    n_trajectories: int = 0
    _last: tuple[str, str] = ("", "")

    def add(self, step_uid: str, trajectory_uid: str, place: str) -> None:
        """Count a step; a trajectory's steps come together."""
        self.places.add(place)
        last_trajectory, last_step = self._last
        self.n_trajectories += trajectory_uid != last_trajectory
        self.n_steps += (trajectory_uid, step_uid) != (last_trajectory, last_step)
        self._last = (trajectory_uid, step_uid)


@dataclass(slots=True)
class Redacted:
    """The result of a redaction.

    Attributes:
        dropped: step uid -> why: ``hit``, ``unreadable``, ``unlocated`` (a hit that is not found in the tokens),
            ``identifier`` (a hit in a name that can't be masked: it identifies or groups steps),
            ``nothing_left`` (every sampled token would be masked).
        masks: step uid -> (starts, ends, id in their place), counted from the prompt's first token.
        n_steps: rule -> steps with a hit of it.
        matches: (rule, matched text) -> where it is. Never stored: it holds what is to be removed.
    """

    dropped: dict[str, str] = field(default_factory=dict)
    masks: dict[str, tuple[list[int], list[int], int]] = field(default_factory=dict)
    n_steps: Counter[str] = field(default_factory=Counter)
    matches: dict[tuple[str, str], Match] = field(default_factory=dict)
    n_masked_steps: int = 0
    n_masked_tokens: int = 0
    n_unread_tokens: int = 0

    def note(self, rule: str, text: str, step_uid: str, trajectory_uid: str, place: str) -> None:
        """Add a match."""
        key = (rule, text)
        if key not in self.matches:
            self.matches[key] = Match(step_uid, trajectory_uid)
        self.matches[key].add(step_uid, trajectory_uid, place)

    def report(self) -> dict[str, Any]:
        """For the manifest: counts by rule and by outcome of the steps."""
        return {
            "n_steps_with_hit": dict(sorted(self.n_steps.items())),
            "n_steps_dropped": dict(sorted(Counter(self.dropped.values()).items())),
            "n_steps_masked": self.n_masked_steps,
            "n_tokens_masked": self.n_masked_tokens,
            "n_steps_whose_tokens_were_not_read": self.n_unread_tokens,
        }


TEXT_FIELDS = ("metadata", "sampling", "error", "finish_reason")
"""Text fields of a step that exports contain, but its tokens do not."""
IDENTIFIERS = ("prompt_uid", "trajectory_uid", "step_uid", "model", "agent")
"""Columns of members whose values are names. A name can't be masked: a hit in it drops the step."""
_MINTED = "^(?:[a-z]{1,8}[-_])?[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"
"""Generated uids, which can't hold a secret."""
MIN_LITERAL = 6
"""A match of at least this many characters is also searched in the tokens as literal text."""


def redact(
    source: PlanSource,
    screening: Screening,
    members: pa.Table,
    rules: Redaction,
    texts: TokenTexts,
    progress: Progress | None = None,
) -> Redacted:
    """Redact the members' trajectories: those without a hit together, then the others one by one.

    Args:
        source: complete trajectories are read from it.
        screening: finds trajectories that may have a hit.
        members: at least step_uid and trajectory_uid.
        rules: the redaction rules.
        texts: the tokenizers' vocabularies.
        progress: called after each trajectory; an exception from it stops the redaction.
    """
    redacted = Redacted()
    wanted: dict[str, set[str]] = {}
    for uid, owner in zip(members["step_uid"].to_pylist(), members["trajectory_uid"].to_pylist(), strict=True):
        wanted.setdefault(owner, set()).add(uid)
    named = _named(members, rules, redacted)
    redacted.dropped |= dict.fromkeys(named, "identifier")
    redacted.n_steps.update(rule for names in named.values() for rule in names)
    known: dict[str | None, TokenText | None] = {}
    steps = screening.steps(list(wanted))
    gone = pa.array(sorted(named), pa.string())
    members = members.filter(pc.invert(pc.is_in(members["step_uid"], gone)))
    for wanted_hash in pc.unique(steps["tokenizer_hash"]).to_pylist():
        known[wanted_hash] = texts(wanted_hash)
    suspects = _suspects(screening, list(wanted), steps, rules, known)
    _without_hit(redacted, steps, members["step_uid"], suspects, rules, known)
    n_clean = len(wanted) - len(suspects)
    if progress is not None:
        progress(n_clean, len(wanted))
    for done, owner in enumerate((owner for owner in wanted if owner in suspects), n_clean + 1):
        uids = wanted[owner] - named.keys()
        selected = [step for step in source.trajectory(owner)["steps"] if step["step_uid"] in uids]
        _trajectory(redacted, owner, selected, rules, known)
        if progress is not None:
            progress(done, len(wanted))
    return redacted


def _named(members: pa.Table, rules: Redaction, redacted: Redacted) -> dict[str, set[str]]:
    """Step uid -> rules with a hit in one of its names; the matches are added to ``redacted``."""
    rules_by_uid: dict[str, set[str]] = {}
    for name in IDENTIFIERS:
        if name not in members.column_names:
            continue
        values = pc.unique(members[name]).drop_null()
        if name in ("step_uid", "trajectory_uid"):
            values = values.filter(pc.invert(pc.match_substring_regex(values, _MINTED)))
        hits = {value: rules.hits(value) for value in values.to_pylist()}
        bad = pa.array([value for value, value_hits in hits.items() if value_hits], pa.string())
        rows = members.filter(pc.is_in(members[name], bad))
        columns = (rows[column].to_pylist() for column in ("step_uid", "trajectory_uid", name))
        for uid, owner, value in zip(*columns, strict=True):
            rules_by_uid.setdefault(uid, set()).update(hit.rule for hit in hits[value])
            for hit in hits[value]:
                for text in hit.texts:
                    redacted.note(hit.rule, text, uid, owner, "name")
    return rules_by_uid


def _suspects(
    screening: Screening,
    owners: list[str],
    steps: pa.Table,
    rules: Redaction,
    known: Mapping[str | None, TokenText | None],
) -> set[str]:
    """Trajectories with a hit in a text or an answer's tokens, and those whose tokens have to be read in full."""

    def hit(body: str) -> bool:
        summary = HitSummary()
        rules.clean(json.loads(body), summary)
        return bool(summary.counts)

    def hit_over(first: str, second: str) -> bool:
        return any(over_border(rules.plain_hits, json.loads(first), json.loads(second)))

    suspects = screening.trajectories_with_hit(owners, hit, may=rules.stored_needle)
    suspects |= screening.trajectories_with_border_hit(
        [one for one in owners if one not in suspects], hit_over, may=rules.needle
    )
    spelled = _spelled_hashes(known)
    silent = pc.and_(pc.is_in(steps["tokenizer_hash"], spelled), pc.invert(steps["has_messages"]))
    suspects.update(steps.filter(silent)["trajectory_uid"].to_pylist())
    if not len(spelled):
        return suspects
    for table in screening.tokens([owner for owner in owners if owner not in suspects]):
        for row in table.filter(pc.is_in(table["tokenizer_hash"], spelled)).to_pylist():
            text = known[row["tokenizer_hash"]]
            assert text is not None
            prompt, response = row["prompt_suffix"] or [], row["response_ids"] or []
            n = len(text.token_bytes)
            odd = any(ids and (min(ids) < 0 or max(ids) >= n) for ids in (prompt, response))
            if odd or rules.spans(_text_of(response, text)):
                suspects.add(row["trajectory_uid"])
    return suspects


def _text_of(ids: list[int], text: TokenText) -> str:
    return b"".join(map(text.token_bytes.__getitem__, ids)).decode("utf-8", errors="surrogateescape")


def _without_hit(
    redacted: Redacted,
    steps: pa.Table,
    members: pa.ChunkedArray,
    suspects: set[str],
    rules: Redaction,
    known: Mapping[str | None, TokenText | None],
) -> None:
    """Count members without a hit whose tokens can't be decoded; without a text they may be dropped."""
    mine = pc.and_(
        pc.is_in(steps["step_uid"], members.combine_chunks()),
        pc.invert(pc.is_in(steps["trajectory_uid"], pa.array(sorted(suspects), pa.string()))),
    )
    unread = pc.and_(steps["has_ids"], pc.invert(pc.is_in(steps["tokenizer_hash"], _spelled_hashes(known))))
    unread_steps = steps.filter(pc.and_(mine, unread))
    redacted.n_unread_tokens += len(unread_steps)
    if rules.unreadable == "drop":
        silent = unread_steps.filter(pc.invert(unread_steps["has_text"]))["step_uid"].to_pylist()
        redacted.dropped |= dict.fromkeys(silent, "unreadable")


def _spelled_hashes(known: Mapping[str | None, TokenText | None]) -> pa.Array:
    return pa.array([name for name, text in known.items() if text is not None], pa.string())


def _trajectory(
    redacted: Redacted,
    trajectory_uid: str,
    steps: list[dict[str, Any]],
    rules: Redaction,
    known: Mapping[str | None, TokenText | None],
) -> None:
    seen: dict[tuple[int, ...], HitSummary] = {}
    hits_of_steps = [_text_hits(step, rules, seen) for step in steps]
    texts = [known[step["tokenizer_hash"]] for step in steps]
    ids = [_ids(step, text) for step, text in zip(steps, texts, strict=True)]
    runs = _runs(steps, ids, texts, rules, anyway=any(one.counts for one in hits_of_steps))
    missing = [
        _unlocated(step, one, step_runs) for step, one, step_runs in zip(steps, hits_of_steps, runs, strict=True)
    ]
    literals = {item for one in missing for item in one if len(item[1]) >= MIN_LITERAL}
    if literals:
        # Search all steps, so that steps which share tokens mask the same ones.
        runs = _runs(steps, ids, texts, replace(rules, literals=tuple(sorted(literals))), anyway=True)
        missing = [
            _unlocated(step, one, step_runs) for step, one, step_runs in zip(steps, hits_of_steps, runs, strict=True)
        ]
    for i, step in enumerate(steps):
        uid, spelled = step["step_uid"], ids[i] is not None
        has_ids = step["prompt_ids"] is not None or step["response_ids"] is not None
        has_text = step["messages"] is not None or step["response_message"] is not None
        named = hits_of_steps[i].counts + Counter(hit.rule for hit in runs[i])
        redacted.n_steps.update(named.keys())
        for rule, text, place in _matches(hits_of_steps[i], runs[i]):
            redacted.note(rule, text, uid, trajectory_uid, place)
        redacted.n_unread_tokens += has_ids and not spelled
        if has_ids and not spelled and not has_text:
            if rules.unreadable == "drop":
                redacted.dropped[uid] = "unreadable"
        elif not named:
            continue
        elif rules.action == "drop":
            redacted.dropped[uid] = "hit"
        elif has_ids and (not spelled or missing[i]):
            redacted.dropped[uid] = "unlocated"
        else:
            _mask(redacted, step, runs[i], texts[i])


def _matches(hits: StepHits, runs: Iterable[Hit]) -> Iterable[tuple[str, str, str]]:
    """(rule, text, place) of each match of a step; tokens only with what no text has."""
    parts = {"prompt": hits.context, "answer": hits.answer, "other fields": hits.other}
    in_texts = {(*item, place) for place, summary in parts.items() for item in summary.matches}
    known = {text for _, text, _ in in_texts}
    in_tokens = {(hit.rule, text, "tokens") for hit in runs for text in hit.texts if text not in known}
    return sorted(in_texts | in_tokens)


def _unlocated(step: Mapping[str, Any], hits: StepHits, runs: Iterable[Hit]) -> list[tuple[str, str]]:
    """Matches in the step's texts that no run of its tokens covers; parts without tokens are left out."""
    wanted = {} if step["prompt_ids"] is None else hits.context.matches
    if step["response_ids"] is not None:
        wanted = wanted | hits.answer.matches
    covered = {text for hit in runs for text in hit.texts}
    return [item for item in wanted if not any(item[1] in text for text in covered)]


def _runs(
    steps: list[dict[str, Any]],
    ids: Sequence[NDArray[np.int64] | None],
    texts: Sequence[TokenText | None],
    rules: Redaction,
    *,
    anyway: bool,
) -> list[list[Hit]]:
    """Runs of tokens with a hit in each step, counted from its prompt's first token.

    Answers are always searched. Prompts are searched if a hit is known (``anyway``, or in an answer), or if there are
    no messages. If a later step extends a step, only the later one is decoded: its hits count for both, so both mask
    the same tokens.
    """
    runs: list[list[Hit]] = []
    for step, text, token_ids in zip(steps, texts, ids, strict=True):
        first = _n_prompt(step)
        pieces = [] if text is None or token_ids is None else _spelled(token_ids[first:], text)
        hits = rules.token_runs(pieces)
        runs.append([hit._replace(begin=first + hit.begin, end=first + hit.end) for hit in hits])
    anyway = anyway or any(runs)
    children: dict[str, list[int]] = {}
    for i, step in enumerate(steps):
        children.setdefault(step["parent_step_uid"] or "", []).append(i)
    done: set[int] = set()
    for i in reversed(range(len(steps))):
        token_ids, text = ids[i], texts[i]
        if token_ids is None or text is None or not (anyway or steps[i]["messages"] is None):
            continue
        longer = (j for j in children.get(steps[i]["step_uid"], ()) if j in done and texts[j] is text)
        child = next((j for j in longer if _begins(ids[j], token_ids)), None)
        if child is None:
            runs[i] += rules.token_runs(_spelled(token_ids, text))
        else:
            runs[i] += [
                hit._replace(end=min(hit.end, len(token_ids))) for hit in runs[child] if hit.begin < len(token_ids)
            ]
        done.add(i)
    return runs


def _begins(longer: NDArray[np.int64] | None, prefix: NDArray[np.int64]) -> bool:
    return longer is not None and len(longer) >= len(prefix) and bool(np.array_equal(longer[: len(prefix)], prefix))


def _spelled(ids: NDArray[np.int64], text: TokenText) -> list[bytes]:
    table = text.token_bytes
    return [table[i] for i in ids.tolist()]


def _mask(redacted: Redacted, step: Mapping[str, Any], runs: list[Hit], text: TokenText | None) -> None:
    uid = step["step_uid"]
    starts, ends = _joined([(hit.begin, hit.end) for hit in runs])
    n_prompt, n_response = _n_prompt(step), 0 if step["response_ids"] is None else len(step["response_ids"])
    covered = sum(max(0, end - max(start, n_prompt)) for start, end in zip(starts, ends, strict=True))
    if n_response and covered >= n_response:
        redacted.dropped[uid] = "nothing_left"
        return
    redacted.n_masked_steps += 1
    redacted.n_masked_tokens += sum(ends) - sum(starts)
    if starts and text is not None:
        redacted.masks[uid] = (starts, ends, text.mask_id)


def _joined(runs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Runs in order without overlap."""
    starts: list[int] = []
    ends: list[int] = []
    for first, end in sorted(runs):
        if ends and first <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(first)
            ends.append(end)
    return starts, ends


def _n_prompt(step: Mapping[str, Any]) -> int:
    return 0 if step["prompt_ids"] is None else len(step["prompt_ids"])


def _ids(step: Mapping[str, Any], text: TokenText | None) -> NDArray[np.int64] | None:
    """Prompt and response, int64 [n]; None when some can't be decoded, or there are none."""
    parts = [step[name] for name in ("prompt_ids", "response_ids") if step[name] is not None]
    if text is None or not parts:
        return None
    ids = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
    if len(ids) and (ids.min() < 0 or ids.max() >= len(text.token_bytes)):
        return None
    return ids


@dataclass(frozen=True, slots=True)
class StepHits:
    """The hits in a step's texts: in the messages and tools of its prompt, in its answer, and in its other fields."""

    context: HitSummary
    answer: HitSummary
    other: HitSummary

    @property
    def counts(self) -> Counter[str]:
        """Rule -> hits."""
        return self.context.counts + self.answer.counts + self.other.counts


def _text_hits(step: Mapping[str, Any], rules: Redaction, seen: dict[tuple[int, ...], HitSummary]) -> StepHits:
    """Hits in the step's texts; texts that several steps share are searched once (``seen``, by identity)."""
    hits = StepHits(HitSummary(), HitSummary(), HitSummary())

    def add_hits(summary: HitSummary, part: Any) -> None:
        key = (id(part), summary is hits.answer)
        if key not in seen:
            # Chat templates omit the reasoning of earlier turns.
            seen[key] = HitSummary(with_reasoning=summary is hits.answer)
            rules.clean(part, seen[key])
        summary.include(seen[key])

    for message in step["messages"] or ():
        add_hits(hits.context, message)
    for tool in step["tools"] or ():
        add_hits(hits.context, tool)
    if step["response_message"] is not None:
        add_hits(hits.answer, step["response_message"])
    for name in TEXT_FIELDS:
        if step.get(name):
            add_hits(hits.other, step[name])
    conversation = [
        *(step["messages"] or ()),
        *([] if step["response_message"] is None else [step["response_message"]]),
    ]
    for first, second in pairwise(conversation):
        pair = (id(first), id(second), -1)
        if pair not in seen:
            seen[pair] = HitSummary()
            for hit in over_border(rules.plain_hits, first, second)[0]:
                seen[pair].add(hit)
        hits.context.include(seen[pair])
    return hits
