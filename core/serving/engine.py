"""The local engine's scheduler: continuous batching, one thread, one ragged forward pass per iteration.

Each iteration computes one new token for every running sequence and, within a budget, parts of prompts that are
not read yet. Sequences are added and removed between iterations. New weights are also swapped in between iterations.
Running sequences are then recomputed from the start, so that each log-prob matches its recorded policy version.
"""

from __future__ import annotations

import concurrent.futures
import random
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import orjson

from core.errors import EngineError, InvalidInput
from core.serving.answers import Emission, PromptToken
from core.serving.grammar import Guide, Guides
from core.serving.parsing import StopScanner
from core.serving.protocol import Sampling
from core.serving.qwen3 import KVCache, Qwen3
from core.serving.sampler import adjusted, draw
from core.serving.tokenizer import ChatTokenizer, Detokenizer

PREFILL_BUDGET = 1024
"""Prompt tokens read per iteration; limits how long running sequences wait."""
SCORED_AT_ONCE = 128
"""Prompt tokens whose log-probs are computed at once; each needs float32 [n_vocab]."""

Sink = Callable[["SequenceState", "Emission | EngineError"], None]
"""Called on the engine's thread for each sampled token, and once with an error if the sequence fails."""


class SequenceState:
    """One sequence that is being generated.

    Attributes:
        index: index of its choice in the response.
        ids, logprobs: tokens sampled so far, and their raw log-probs in nats.
        guide: the position in its grammar; None without a grammar.
        read: the prompt's tokens with log-probs, as far as the prompt was read; None if not requested.
        policy_version, policy_version_end: the weights that sampled its first and its latest token.
    """

    def __init__(
        self,
        request_id: str,
        index: int,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        n_top_logprobs: int,
        tokenizer: ChatTokenizer,
        sink: Sink,
        seed: int,
        guide: Guide | None = None,
        scores_prompt: bool = False,
    ) -> None:
        self.guide = guide
        self.read: list[PromptToken] | None = [] if scores_prompt else None
        self.request_id = request_id
        self.index = index
        self.prompt_ids = tuple(prompt_ids)
        self.sampling = sampling
        self.n_top_logprobs = n_top_logprobs
        self.sink = sink
        self.rng = random.Random(seed)
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.unread: list[int] = list(prompt_ids)
        self.cache: KVCache | None = None
        self.siblings: list[SequenceState] = []
        self.policy_version: int | None = None
        self.policy_version_end: int | None = None
        self.finish_reason: str | None = None
        self.cancelled = False
        self.detokenizer = Detokenizer(tokenizer)
        self.scanner = StopScanner(sampling.stop)


class Engine:
    """The scheduler: holds the weights and the thread that runs the forward pass.

    Args:
        max_sequences: sequences that run at once; others wait in order of arrival.
        default_max_tokens: limit for requests without ``max_tokens``.
        context_length: most tokens of prompt and answer together; None, or more than the model allows: the model's.
        record: file to which one JSON line per finished sequence is appended.
    """

    def __init__(
        self,
        model: Qwen3,
        tokenizer: ChatTokenizer,
        *,
        max_sequences: int = 16,
        default_max_tokens: int = 512,
        context_length: int | None = None,
        policy_version: int = 0,
        record: Path | None = None,
        seed: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.tokenizer = tokenizer
        self.policy_version = policy_version
        self.n_iterations = 0
        self.max_running = 0
        self._model = model
        self._guides = Guides(tokenizer)
        self._max_sequences = max_sequences
        self._default_max_tokens = default_max_tokens
        self._context_length = context_length
        self._record: IO[bytes] | None = record.open("ab") if record is not None else None
        self._seeds = random.Random(seed)
        self._clock = clock
        self._wake = threading.Condition()
        self._waiting: deque[SequenceState] = deque()
        self._running: list[SequenceState] = []
        self._swap: tuple[Qwen3, int, concurrent.futures.Future[int]] | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of prompt and answer together."""
        longest = self._model.config.context_length
        return longest if self._context_length is None else min(longest, self._context_length)

    @property
    def n_running(self) -> int:
        """Number of running sequences."""
        return len(self._running)

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the current iteration."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout=10)
        if self._record is not None:
            self._record.close()

    def submit(
        self,
        request_id: str,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        *,
        n_top_logprobs: int,
        sink: Sink,
        scores_prompt: bool = False,
    ) -> list[SequenceState]:
        """Queue ``n`` sequences for each prompt. A prompt is read once for all its sequences.

        Args:
            request_id: id of the response, for the record.
            prompts: token ids.
            sampling: parameters of all sequences.
            n_top_logprobs: how many alternatives to return with each token.
            sink: called for each token.
            scores_prompt: compute log-probs of the prompt's tokens; they are ready before the first sampled token.

        Raises:
            InvalidInput: the grammar can't be compiled.
        """
        seed = self._seeds.getrandbits(64) if sampling.seed is None else sampling.seed
        made: list[SequenceState] = []
        leaders: list[SequenceState] = []
        for prompt in prompts:
            group = [
                SequenceState(
                    request_id,
                    len(made) + k,
                    prompt,
                    sampling,
                    n_top_logprobs=n_top_logprobs,
                    tokenizer=self.tokenizer,
                    sink=sink,
                    seed=seed + len(made) + k,
                    guide=None if sampling.grammar is None else self._guides.guide(sampling.grammar),
                    scores_prompt=scores_prompt,
                )
                for k in range(sampling.n)
            ]
            group[0].siblings = group[1:]
            leaders.append(group[0])
            made += group
        with self._wake:
            self._waiting.extend(leaders)
            self._wake.notify()
        return made

    def cancel(self, sequences: Sequence[SequenceState]) -> None:
        """Cancel sequences; their slots are free from the next iteration on."""
        with self._wake:
            for sequence in sequences:
                sequence.cancelled = True
            self._wake.notify()

    def load(self, path: Path, policy_version: int) -> concurrent.futures.Future[int]:
        """Read weights in the caller's thread, then swap them in between two iterations.

        Returns:
            A future with the number of running sequences that are recomputed.

        Raises:
            EngineError: the folder has no readable model, or another reload is in progress.
            InvalidInput: the model's vocabulary is smaller than the tokenizer's.
        """
        model = Qwen3.load(path)
        if model.config.n_vocab < self.tokenizer.n_vocab:
            raise InvalidInput(
                f"{path} has {model.config.n_vocab} tokens, the tokenizer {self.tokenizer.n_vocab}", field="path"
            )
        done: concurrent.futures.Future[int] = concurrent.futures.Future()
        with self._wake:
            if self._swap is not None:
                raise EngineError("another reload is under way", field="path", hint="try again")
            self._swap = (model, policy_version, done)
            self._wake.notify()
        return done

    def _loop(self) -> None:
        import torch

        with torch.inference_mode():
            while True:
                with self._wake:
                    while not (self._stopping or self._running or self._waiting or self._swap):
                        self._wake.wait()
                    if self._stopping:
                        return
                    self._admit()
                try:
                    self._iterate()
                except Exception as error:
                    traceback.print_exc(file=sys.stderr)
                    self._fail(EngineError(f"the engine failed: {error}"))

    def _admit(self) -> None:
        """Remove cancelled sequences, swap weights and fill free slots. Runs between iterations, under the lock."""
        for sequence in [s for s in self._running if s.cancelled]:
            self._retire(sequence)
        if self._swap is not None:
            model, version, done = self._swap
            self._model, self.policy_version, self._swap = model, version, None
            for sequence in self._running:
                sequence.cache = None
                sequence.unread = [*sequence.prompt_ids, *sequence.ids]
                if sequence.read is not None and not sequence.ids:
                    sequence.read.clear()
            done.set_result(len(self._running))
        while self._waiting:
            leader = self._waiting[0]
            if self._running and len(self._running) + 1 + len(leader.siblings) > self._max_sequences:
                return
            self._waiting.popleft()
            if not leader.cancelled:
                self._running.append(leader)

    def _iterate(self) -> None:
        budget = PREFILL_BUDGET
        batch: list[SequenceState] = []
        parts: list[list[int]] = []
        for sequence in self._running:
            take = len(sequence.unread) if len(sequence.unread) == 1 else min(len(sequence.unread), budget)
            if take == 0:
                continue
            budget -= take if take > 1 else 0
            batch.append(sequence)
            parts.append(sequence.unread[:take])
            if sequence.cache is None:
                sequence.cache = self._model.new_cache()
        if not batch:
            return
        self.n_iterations += 1
        self.max_running = max(self.max_running, len(batch))
        states_T = self._model.read(parts, [s.cache for s in batch if s.cache is not None])
        ready: list[tuple[SequenceState, int]] = []
        ends: list[int] = []
        begin = 0
        for row, (sequence, part) in enumerate(zip(batch, parts, strict=True)):
            self._score(sequence, part, states_T[begin : begin + len(part)])
            begin += len(part)
            ends.append(begin - 1)
            del sequence.unread[: len(part)]
            if sequence.unread:
                continue
            ready.append((sequence, row))
            for sibling in sequence.siblings:
                sibling.read = sequence.read
                sibling.cache = None if sequence.cache is None else sequence.cache.clone()
                sibling.unread = []
                ready.append((sibling, row))
                self._running.append(sibling)
            sequence.siblings = []
        if ready:
            self._sample(ready, self._model.logits(states_T[ends]))

    def _score(self, sequence: SequenceState, part: Sequence[int], states_T: Any) -> None:
        """Compute the log-probs of the prompt tokens that follow each position of this part of the prompt."""
        known, prompt = sequence.read, sequence.prompt_ids
        if known is None or len(known) == len(prompt):
            return
        if not known:
            known.append(PromptToken(prompt[0], None))
        for start in range(0, len(part), SCORED_AT_ONCE):
            logprobs_TV = self._model.logits(states_T[start : start + SCORED_AT_ONCE]).log_softmax(-1)
            for row_V, token_id in zip(logprobs_TV, prompt[len(known) :], strict=False):
                known.append(PromptToken(token_id, float(row_V[token_id]), _best(row_V, sequence.n_top_logprobs)))

    def _sample(self, ready: list[tuple[SequenceState, int]], logits_BV: Any) -> None:
        """Draw one token for each sequence from its row; log-probs are those of the unmodified logits."""
        import torch

        logprobs_BV = logits_BV.log_softmax(-1)
        choosable_BV = logits_BV[:, : self.tokenizer.n_vocab]  # a padded vocabulary has ids without text
        for sequence, row in ready:
            sampling = sequence.sampling
            row_V = adjusted(choosable_BV[row], sampling, sequence.prompt_ids, sequence.ids)
            enough = len(sequence.ids) >= sampling.min_tokens
            banned = () if enough else (*self.tokenizer.end_ids, *sampling.stop_token_ids)
            if sequence.guide is not None:
                # The grammar decides when an answer may end, so min_tokens does not apply.
                banned = ()
                row_V = row_V.masked_fill(~torch.from_numpy(sequence.guide.allowed()), float("-inf"))
            token_id = draw(row_V, sampling, sequence.rng, banned)
            if sequence.guide is not None:
                sequence.guide.take(token_id)
            top = _best(logprobs_BV[row], sequence.n_top_logprobs)
            self._advance(sequence, token_id, float(logprobs_BV[row, token_id]), top)

    def _advance(
        self, sequence: SequenceState, token_id: int, logprob: float, top: tuple[tuple[int, float], ...]
    ) -> None:
        sampling = sequence.sampling
        sequence.ids.append(token_id)
        sequence.logprobs.append(logprob)
        sequence.unread = [token_id]
        sequence.policy_version_end = self.policy_version
        if sequence.policy_version is None:
            sequence.policy_version = self.policy_version
        n = len(sequence.ids)
        text = ""
        reason: str | None = None
        stop: int | str | None = None
        if token_id in sampling.stop_token_ids:
            reason, stop = "stop", token_id
        elif token_id in self.tokenizer.end_ids and not sampling.ignore_eos:
            reason = "stop"
        elif n < sampling.min_tokens:
            text = sequence.detokenizer.feed(token_id)
        else:
            text, stop = sequence.scanner.feed(sequence.detokenizer.feed(token_id))
            if stop is not None:
                reason = "stop"
        limit = self._default_max_tokens if sampling.max_tokens is None else sampling.max_tokens
        if reason is None and (n >= limit or len(sequence.prompt_ids) + n >= self.context_length):
            reason = "length"
        if reason is not None:
            if not isinstance(stop, str):
                tail, stopped = sequence.scanner.feed(sequence.detokenizer.close())
                text += tail if stopped else tail + sequence.scanner.close()
            sequence.finish_reason = reason
        sequence.sink(sequence, Emission(token_id, logprob, top, text, reason, stop))
        if reason is not None:
            self._retire(sequence)

    def _retire(self, sequence: SequenceState) -> None:
        """Free the sequence's slot and record what was sampled."""
        self._running.remove(sequence)
        sequence.cache = None
        if self._record is None:
            return
        sampling = sequence.sampling
        line = {
            "at": self._clock(),
            "request_id": sequence.request_id,
            "choice_index": sequence.index,
            "prompt_ids": sequence.prompt_ids,
            "response_ids": sequence.ids,
            "logprobs": sequence.logprobs,
            "finish_reason": sequence.finish_reason,
            "cancelled": sequence.finish_reason is None,
            "policy_version": sequence.policy_version,
            "policy_version_end": sequence.policy_version_end,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": sampling.seed,
        }
        self._record.write(orjson.dumps(line) + b"\n")
        self._record.flush()

    def _fail(self, error: EngineError) -> None:
        for sequence in list(self._running):
            for one in (sequence, *sequence.siblings):
                one.sink(one, error)
            self._retire(sequence)


def _best(logprobs_V: Any, n: int) -> tuple[tuple[int, float], ...]:
    """The ``n`` most likely ids with their log-probs, best first."""
    if not n:
        return ()
    best = logprobs_V.topk(n)
    return tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
