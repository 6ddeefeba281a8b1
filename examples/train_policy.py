"""A reference trainer: trains a policy through the studio, which it calls over HTTP only.

    python examples/train_policy.py --studio http://127.0.0.1:8100 --model MODEL_FOLDER --out RUN_FOLDER --updates 20

One update: lease a batch of prompt groups; compute the log-probs of its tokens again, on packed prefix trees; compare
them with the captured ones, and refuse the batch if they are of other weights; take one step of the clipped loss (PPO,
arXiv 1707.06347); save the weights; acknowledge the batch with metrics; have the studio's engines load the weights. The
studio stamps the new version on all later calls.

``--algorithm`` is grpo, step_gae (with a small critic, which is trained as well), gigpo, or sft for a warm start. The
advantages are those of the studio's plan. The model is any causal LM in a transformers folder that tree attention
supports (``core.tree.attention``); a GPU is used if there is one.

RUN_FOLDER holds a folder per version and ``state.json``. If the program is started again with the same folder, it
resumes after the last saved update. It prints one line of JSON when the first weights are in force (update 0, or the
last one of an interrupted run), and one per update.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from core.client import StudioClient, Unreachable
from core.errors import Conflict, EngineError, StudioError
from core.trainer import Batch, Guard, Trainer, TrainingRow
from core.tree.attention import packed_hidden, use_tree_attention
from core.tree.build import PackedTree
from core.tree.losses import LOSSES, Clip, batch_loss
from core.tree.packing import pack
from core.tree.scores import token_scores
from core.tree.sequences import Sequences
from core.tree.terms import LossTerms, coefficients, denominators, loss_terms

OPTIONS: dict[str, dict[str, Any]] = {"grpo": {}, "step_gae": {}, "gigpo": {"anchor": "observation"}, "sft": {}}
"""Options of the plan's estimator, by algorithm."""

N_EXCHANGES = 32
POLL_S = 10.0
N_RETRIES = 40
"""Retries of one call, up to 5 s apart: the studio may be restarted meanwhile."""


@dataclass
class Packed:
    """A batch in the form of the model: ``trees[i]`` and ``terms[i]`` belong together.

    Attributes:
        sequences: the rows; ``terms[i].step`` is a row's number.
        positions: for each row the tokens in its loss, ascending.
    """

    sequences: Sequences
    trees: list[PackedTree]
    terms: list[LossTerms]
    positions: list[np.ndarray]


def packed(rows: Sequence[TrainingRow], token_budget: int) -> Packed:
    """Pack rows into prefix trees, one or several prompt groups to a tree row. Needs numpy alone."""
    ids = np.array([token for row in rows for token in row.ids], dtype=np.int32)
    mask = np.array([bit for row in rows for bit in row.mask], dtype=bool)
    logprobs = np.array([np.nan if x is None else x for row in rows for x in row.logprobs], dtype=np.float32)
    advantages = np.array([np.nan if x is None else x for row in rows for x in row.advantages], dtype=np.float32)
    offsets = np.concatenate([[0], np.cumsum([len(row.ids) for row in rows])]).astype(np.int64)
    n_prompt = np.array([row.n_prompt for row in rows], dtype=np.int64)
    sequences = Sequences(
        ids=ids,
        offsets=offsets,
        n_prompt=n_prompt,
        logprobs=logprobs,
        step_uids=[str(i) for i in range(len(rows))],
        masked=~mask,
    )
    groups = {uid: number for number, uid in enumerate(dict.fromkeys(row.prompt_uid for row in rows))}
    packing = pack(sequences, np.array([groups[row.prompt_uid] for row in rows]), token_budget)
    if len(packing.over_budget):
        longest = int(sequences.lengths.max())
        raise SystemExit(f"a row has {longest} tokens, more than --token-budget {token_budget}")
    trees = [packing.row(sequences, i) for i in range(len(packing.rows))]
    of_response = advantages[sequences.response_index()]
    terms = [loss_terms(tree, sequences, token_advantages=of_response) for tree in trees]
    # Nothing predicts a token that has none before it.
    positions = [np.flatnonzero(mask[a:b] & (np.arange(b - a) > 0)) for a, b in pairwise(offsets)]
    return Packed(sequences, trees, terms, positions)


class Critic(torch.nn.Module):
    """The value of a step's state, from the policy's hidden state before the first response token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(width, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, width] to [n]. The policy is not trained through its states."""
        values: torch.Tensor = self.layers(hidden.detach().float()).squeeze(-1)
        return values


class Learner:
    """Model, critic and optimiser; ``update`` trains on one batch.

    Args:
        folder: weights, and optimiser state if this program saved them.
        kl: coefficient of the divergence from the weights in ``reference``; 0 needs no reference.
    """

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.kind = "blocks" if self.device == "cuda" else "cascade"
        self.model = self._load(folder)
        self.critic = Critic(self.model.config.hidden_size).to(self.device) if arguments.critic else None
        parameters = [*self.model.parameters(), *(self.critic.parameters() if self.critic else ())]
        self.optimizer = torch.optim.Adam(parameters, lr=arguments.lr)
        self.reference = self._load(arguments.model) if arguments.kl else None
        self.arguments = arguments
        if (saved := folder / "trainer.pt").exists():
            state = torch.load(saved, map_location=self.device, weights_only=True)
            self.optimizer.load_state_dict(state["optimizer"])
            if self.critic is not None:
                self.critic.load_state_dict(state["critic"])

    def _load(self, folder: Path) -> Any:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(self.device)
        model.train()
        use_tree_attention(model, self.kind)
        return model

    def update(self, batch: Batch, rows: list[TrainingRow], version: int) -> dict[str, float | None]:
        """One optimiser step on a batch; returns metrics. If the guard refuses the batch, nothing is changed."""
        arguments, loss_name = self.arguments, "sft" if self.arguments.algorithm == "sft" else "ppo_clip"
        data = packed(rows, arguments.token_budget)
        totals = denominators(data.terms)
        recomputed = [np.zeros(len(row.ids)) for row in rows]
        sums = {"loss": 0.0, "entropy": 0.0, "clip_fraction": 0.0, "kl_reference": 0.0, "value_loss": 0.0}
        self.optimizer.zero_grad()
        for tree, terms in zip(data.trees, data.terms, strict=True):
            hidden = packed_hidden(self.model, tree)
            scores = token_scores(self.model, hidden, terms)
            share = torch.from_numpy(coefficients(terms, totals)).to(scores.logp)
            loss = batch_loss(loss_name, scores.logp, terms, totals, clip=Clip(arguments.clip, arguments.clip))
            sums["loss"] += loss.item()
            if self.reference is not None:
                with torch.no_grad():
                    reference = token_scores(self.reference, packed_hidden(self.reference, tree), terms).logp
                apart = reference - scores.logp
                divergence = ((apart.exp() - 1 - apart) * share).sum()
                loss, sums["kl_reference"] = loss + arguments.kl * divergence, sums["kl_reference"] + divergence.item()
            if self.critic is not None:
                value_loss = self._value_loss(hidden, tree, rows)
                loss, sums["value_loss"] = loss + value_loss, sums["value_loss"] + value_loss.item()
            loss.backward()
            sums["entropy"] += (scores.entropy.detach() * share).sum().item()
            logp = scores.logp.detach().cpu().numpy()
            ratio = np.exp(np.clip(logp - terms.old_logp, -50, 50))
            sums["clip_fraction"] += float((np.abs(ratio - 1) > arguments.clip).sum()) / max(1.0, totals.weight)
            for row in np.unique(terms.step):
                recomputed[row][data.positions[row]] = logp[terms.step == row]
        comparison = batch.compare(rows, recomputed, version)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), arguments.max_grad_norm)
        self.optimizer.step()
        n_packed = sum(tree.n_packed for tree in data.trees)
        n_fetched = sum(len(s["prompt_ids"]) + len(s["response_ids"]) for s in batch.steps)
        rewards = {s["trajectory_uid"]: s["trajectory_reward"] for s in batch.steps}
        known = [reward for reward in rewards.values() if reward is not None]
        stale = [version - s["policy_version"] for s in batch.steps if s["policy_version"] is not None]
        used = ["loss", "entropy", *(["clip_fraction"] if LOSSES[loss_name].needs_old_logp else [])]
        used += (["kl_reference"] if self.reference is not None else []) + (["value_loss"] if self.critic else [])
        return {
            **{name: sums[name] for name in used},
            **comparison.metrics(),
            "grad_norm": float(norm),
            "reward_mean": float(np.mean(known)) if known else None,
            "staleness_mean": float(np.mean(stale)) if stale else None,
            "staleness_max": float(max(stale)) if stale else None,
            "n_rows": float(len(rows)),
            "n_tokens": float(n_fetched),
            "n_trained_tokens": totals.weight,
            "token_ratio": n_packed / n_fetched,
            "step_metrics": comparison.step_metrics(),  # type: ignore[dict-item]
        }

    def values(self, rows: list[TrainingRow]) -> dict[str, float]:
        """The critic's value of each step's state, by step uid."""
        assert self.critic is not None
        data, values = packed(rows, self.arguments.token_budget), dict[str, float]()
        with torch.no_grad():
            for tree in data.trees:
                states, spans = self._states(packed_hidden(self.model, tree), tree, rows)
                values |= dict(zip([s.step["step_uid"] for s in spans], self.critic(states).tolist(), strict=True))
        return values

    def _states(
        self, hidden: torch.Tensor, tree: PackedTree, rows: list[TrainingRow]
    ) -> tuple[torch.Tensor, list[Any]]:
        """Hidden states [n, width] before the first response token of each step in the tree, and the steps' spans."""
        spans, places = [], []
        for member, row in enumerate(tree.members.tolist()):
            path = tree.path(member)
            spans += rows[row].spans
            places += [int(path[max(0, span.begin - 1)]) for span in rows[row].spans]
        return hidden[torch.tensor(places, device=hidden.device)], spans

    def _value_loss(self, hidden: torch.Tensor, tree: PackedTree, rows: list[TrainingRow]) -> torch.Tensor:
        """Mean squared error to the plan's returns; each tree has its share of the batch's steps."""
        assert self.critic is not None
        states, spans = self._states(hidden, tree, rows)
        returns = torch.tensor([span.step["return"] for span in spans], dtype=torch.float32, device=hidden.device)
        n_steps = sum(len(row.spans) for row in rows)
        loss: torch.Tensor = (self.critic(states) - returns).square().sum() / n_steps
        return loss

    def save(self, folder: Path) -> None:
        """Write weights, tokenizer and optimiser state; the folder appears complete or not at all."""
        temporary = folder.with_name(folder.name + ".tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        self.model.save_pretrained(temporary)
        for path in self.arguments.model.iterdir():
            # The tokenizer and the like: engines that are started with this folder need them.
            if path.is_file() and path.suffix not in (".safetensors", ".pt") and not (temporary / path.name).exists():
                shutil.copy(path, temporary)
        state = {"optimizer": self.optimizer.state_dict()}
        if self.critic is not None:
            state["critic"] = self.critic.state_dict()
        torch.save(state, temporary / "trainer.pt")
        shutil.rmtree(folder, ignore_errors=True)
        temporary.replace(folder)


def shuffled(rows: list[TrainingRow], random_: random.Random) -> None:
    """The control: exchange the advantages of a prompt group's trajectories at random.

    A random exchange of so few trajectories agrees or disagrees with the truth by chance, and the policy learns that.
    So of ``N_EXCHANGES`` draws for each group the one is taken that keeps the batch's Σ true × exchanged advantage
    closest to 0.
    """
    of_group: dict[str, dict[str, float]] = {}
    for row in rows:
        values = {x for x, bit in zip(row.advantages, row.mask, strict=True) if bit}
        if len(values) != 1 or (value := values.pop()) is None:
            raise SystemExit("--shuffle-rewards needs one advantage per trajectory: use --algorithm grpo")
        of_group.setdefault(row.prompt_uid, {})[row.trajectory_uid] = value
    agreement = 0.0
    for group in random_.sample(sorted(of_group), len(of_group)):
        trajectories = of_group[group]
        truth = list(trajectories.values())
        draws = [random_.sample(truth, len(truth)) for _ in range(N_EXCHANGES)]
        sums = [agreement + sum(a * b for a, b in zip(truth, draw, strict=True)) for draw in draws]
        agreement = min(sums, key=abs)
        trajectories.update(zip(trajectories, draws[sums.index(agreement)], strict=True))
    for row in rows:
        exchanged = of_group[row.prompt_uid][row.trajectory_uid]
        row.advantages = [exchanged if bit else None for bit in row.mask]


class Run:
    """The run's folder: what was trained, and how far the studio knows of it.

    ``state.json`` is replaced after the weights were saved and before the batch is acknowledged. If the program is
    killed between the two, the next start acknowledges the batch and does not train on it again.
    """

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.first_model = folder, model
        self.state: dict[str, Any] = {"base": None, "update": 0, "version": None, "batches": []}
        folder.mkdir(parents=True, exist_ok=True)
        if (path := folder / "state.json").exists():
            self.state = json.loads(path.read_text())

    def weights(self, version: int | None) -> Path:
        """Folder of a version's weights; the run's first version is the given model."""
        first = version is None or version == self.state["base"]
        return self.first_model if first else self.folder / f"version-{version:06d}"

    def write(self, **state: Any) -> None:
        """Replace ``state.json``."""
        self.state |= state
        temporary = self.folder / "state.json.tmp"
        temporary.write_text(json.dumps(self.state))
        temporary.replace(self.folder / "state.json")

    def thin(self, keep: int) -> None:
        """Delete the folders of older versions."""
        for path in sorted(self.folder.glob("version-??????"))[:-keep]:
            shutil.rmtree(path)


def sync(trainer: Trainer, folder: Path, version: int, engines: list[str] | None, patience_s: float) -> float:
    """Put weights in force; tries again while the studio or an engine is being restarted. Returns seconds."""
    began, deadline = time.monotonic(), time.monotonic() + patience_s
    while True:
        try:
            trainer.sync_weights(folder, version, engines=engines)
            return time.monotonic() - began
        except (Unreachable, EngineError, Conflict) as error:
            if time.monotonic() > deadline:
                raise
            print(f"the weights of version {version} are not in force yet: {error}", file=sys.stderr)
            time.sleep(1.0)


def next_batch(trainer: Trainer, learner: Learner, arguments: argparse.Namespace, version: int) -> Batch | None:
    """Lease a batch; None if none becomes ready in time."""
    recipe = {
        "algorithm": arguments.algorithm,
        "options": OPTIONS[arguments.algorithm],
        "n_rollouts": arguments.rollouts if arguments.algorithm != "sft" else None,
        "batch_size": arguments.groups,
        "max_staleness": arguments.max_staleness,
        "token_budget": arguments.token_budget,
    }
    deadline = time.monotonic() + arguments.patience
    while (left := deadline - time.monotonic()) > 0:
        if not arguments.critic:
            batch = trainer.fetch(min(POLL_S, left), recipe=recipe)
        else:
            # A plan with values needs the values first, so the batch is read once without them.
            batch = trainer.fetch(min(POLL_S, left), recipe={**recipe, "algorithm": "grpo", "options": {}})
            if batch is not None:
                critic = f"{trainer.consumer}-{version}"
                values = [{"step_uid": u, "value": v} for u, v in learner.values(batch.rows()).items()]
                trainer.client.call("POST", "/api/v1/values", {"model": critic, "values": values}, repeat=True)
                batch.release("the critic's values were stored")
                batch = trainer.fetch(0.0, recipe={**recipe, "value_model": critic})
        if batch is not None:
            return batch
    return None


def train(arguments: argparse.Namespace) -> int:
    disable_progress_bar()
    torch.manual_seed(arguments.seed)
    run = Run(arguments.out, arguments.model)
    client = StudioClient(arguments.studio, api_key=arguments.api_key, n_retries=N_RETRIES)
    view = {"where": arguments.where} if arguments.where else None
    guard = None if arguments.no_guard or arguments.algorithm == "sft" else Guard(arguments.guard_limit)
    with Trainer(
        client, arguments.consumer, channel=arguments.channel, view=view, guard=guard, lease_s=arguments.lease
    ) as trainer:
        if run.state["batches"]:
            trainer.settle(run.state["batches"][-1], update=run.state["update"])
        trainer.reclaim()
        version = run.state["version"]
        if version is None:
            version = trainer.version or 0
            run.write(base=version, version=version)
        learner = Learner(run.weights(version), arguments)
        sync(trainer, run.weights(version), version, arguments.engine, arguments.patience)
        print(json.dumps({"update": run.state["update"], "version": version}), flush=True)
        while run.state["update"] < arguments.updates:
            seconds: dict[str, float] = {}
            with timed(seconds, "fetch"):
                batch = next_batch(trainer, learner, arguments, version)
            if batch is None:
                print(f"no batch within {arguments.patience:g} s: {trainer.missing}", file=sys.stderr)
                return 3
            update = run.state["update"] + 1
            rows = batch.rows()
            if arguments.shuffle_rewards:
                shuffled(rows, random.Random(f"{arguments.seed} {update}"))
            with timed(seconds, "train"):
                metrics = learner.update(batch, rows, version)
            version += 1
            with timed(seconds, "save"):
                learner.save(run.weights(version))
            run.write(update=update, version=version, batches=[*run.state["batches"], batch.uid])
            step_metrics = metrics.pop("step_metrics")
            with timed(seconds, "ack"):
                try:
                    batch.ack(update=update, metrics={**metrics, **seconds}, step_metrics=step_metrics)
                except Conflict as error:
                    # The lease has expired and the groups were leased again, so they are trained on twice.
                    print(f"batch {batch.uid} was not acknowledged: {error}", file=sys.stderr)
            with timed(seconds, "sync"):
                sync(trainer, run.weights(version), version, arguments.engine, arguments.patience)
            try:
                batch.measure(update=update, metrics={name: seconds[name] for name in ("seconds_ack", "seconds_sync")})
            except Unreachable as error:
                # Metrics would count twice if they were sent again after a lost answer; the run goes on without them.
                print(f"two times of update {update} were not reported: {error}", file=sys.stderr)
            run.thin(arguments.keep)
            print(
                json.dumps({"update": update, "version": version, "batch_uid": batch.uid, **metrics, **seconds}),
                flush=True,
            )
    return 0


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Store the duration of the block as ``seconds_STAGE``."""
    began = time.monotonic()
    yield
    seconds[f"seconds_{stage}"] = time.monotonic() - began


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a policy through the studio.")
    add: Any = parser.add_argument
    add("--studio", required=True, help="base URL of the studio")
    add("--model", type=Path, required=True, help="transformers folder of the first weights")
    add("--out", type=Path, required=True, help="folder of the run; an interrupted run is resumed")
    add("--algorithm", choices=list(OPTIONS), default="grpo")
    add("--updates", type=int, default=20, help="updates of the run in all")
    add("--lr", type=float, default=5e-4)
    add("--seed", type=int, default=0)
    add("--channel", default="train")
    add("--where", default="", help="condition over step columns: train only on these steps")
    add("--groups", type=int, default=8, help="prompt groups per update")
    add("--rollouts", type=int, default=8, help="trajectories per prompt group")
    add("--max-staleness", type=int, default=0, help="most versions that a step may be behind")
    add("--clip", type=float, default=0.2, help="ratios are clipped to 1 ± this")
    add("--kl", type=float, default=0.0, help="coefficient of the divergence from the first weights")
    add("--max-grad-norm", type=float, default=1.0)
    add("--token-budget", type=int, default=32768, help="longest packed row, tokens")
    add(
        "--guard-limit", type=float, default=Guard().limit, help="largest mean log-prob difference at staleness 0, nats"
    )
    add("--no-guard", action="store_true", help="train although captured and recomputed log-probs differ")
    add("--shuffle-rewards", action="store_true", help="the control: exchange advantages within each prompt group")
    add("--engine", action="append", help="engine that loads the weights, repeatable; default: those of the policy")
    add("--api-key", help="the studio's admin key, where one is set")
    add("--consumer", default="train-policy", help="name of this trainer; one process per name")
    add("--lease", type=float, default=120.0, help="time after which an unrenewed batch goes back, seconds")
    add("--patience", type=float, default=600.0, help="longest wait for a batch or an engine, seconds")
    add("--keep", type=int, default=3, help="versions whose weights are kept")
    arguments = parser.parse_args(argv)
    arguments.critic = arguments.algorithm == "step_gae"
    arguments.model, arguments.out = arguments.model.absolute(), arguments.out.absolute()
    try:
        return train(arguments)
    except StudioError as error:
        print(json.dumps(error.as_dict()), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
