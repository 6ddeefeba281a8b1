"""Tiny causal LMs, and the losses of separate sequences written out one sequence at a time: the judge of packing."""

from __future__ import annotations

import numpy as np

from core.tree.sequences import Sequences

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}


def make(family: str, dtype, *, norms_in_dtype: bool = False):
    """A seeded model. ``norms_in_dtype`` puts torch's RMSNorm in place of transformers', which rounds to fp32."""
    import torch
    import transformers

    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(**SIZES, attn_implementation="sdpa")
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(torch.randn_like(weight) * (0.1 if weight.ndim == 1 else 0.15))
            assert weight.dtype == dtype, name
    if norms_in_dtype:
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if type(child).__name__.endswith("RMSNorm"):
                    norm = torch.nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon, dtype=dtype)
                    norm.weight = child.weight
                    setattr(parent, name, norm)
    return model


def rollouts(seed: int, n: int = 8) -> Sequences:
    """A random group: branches at random depths, prefixes of others, duplicates, empty prompts and responses."""
    rng = np.random.default_rng(seed)

    def draw(most: int) -> list[int]:
        return rng.integers(0, VOCABULARY, rng.integers(0, most)).tolist()

    lists = [[*draw(14), 1]]
    for _ in range(n - 2):
        base = lists[rng.integers(len(lists))]
        lists.append(base[: rng.integers(0, len(base) + 1)] + draw(10))
    lists.append(list(lists[-1]))  # a duplicate rollout
    cuts = [int(rng.integers(0, len(one) + 1)) for one in lists]
    cuts[-1] = cuts[-2]
    responses = [one[cut:] for one, cut in zip(lists, cuts, strict=True)]
    old = [(-rng.random(len(r)) * 6).astype(np.float32) for r in responses]
    return Sequences.from_lists([one[:cut] for one, cut in zip(lists, cuts, strict=True)], responses, old)


def join(groups: list[Sequences]) -> Sequences:
    """Several sources as one."""
    shift = np.cumsum([0] + [g.n_tokens for g in groups])
    return Sequences(
        ids=np.concatenate([g.ids for g in groups]),
        offsets=np.concatenate([[0]] + [g.offsets[1:] + s for g, s in zip(groups, shift, strict=False)]).astype(
            np.int64
        ),
        n_prompt=np.concatenate([g.n_prompt for g in groups]),
        logprobs=np.concatenate([g.logprobs for g in groups]),
        step_uids=[f"{i}-{uid}" for i, g in enumerate(groups) for uid in g.step_uids],
    )


def separate_logps(model, sequences: Sequences):
    """Log-probs and entropies of each sequence's response tokens, from a plain forward pass of it alone."""
    import torch

    model.set_attn_implementation("sdpa")
    scores = []
    for i in range(len(sequences)):
        ids = torch.from_numpy(sequences.sequence(i).astype(np.int64))
        first = max(1, int(sequences.n_prompt[i]))
        if len(ids) <= first:
            scores.append((torch.zeros(0), torch.zeros(0)))
            continue
        logp = torch.log_softmax(model(ids[None], use_cache=False).logits[0, :-1], dim=-1)[first - 1 :]
        scores.append((logp.gather(1, ids[first:, None])[:, 0], -(logp.exp() * logp).sum(-1)))
    return scores


def separate_loss(name: str, logps, sequences: Sequences, advantages, normalise: str, low=0.2, high=0.2):
    """The textbook loss: sequence after sequence, token after token where it matters."""
    import torch

    sums, counts = [], []
    for i, logp in enumerate(logps):
        if len(logp) == 0:
            continue
        end = int(sequences.offsets[i + 1])
        old = torch.from_numpy(sequences.logprobs[end - len(logp) : end]).to(logp)
        advantage = float(np.float32(advantages[i]))
        ratio = torch.exp(logp - old)
        if name == "sft":
            tokens = -logp
        elif name == "policy_gradient":
            tokens = -advantage * logp
        elif name == "cispo":
            tokens = -ratio.detach().clamp(1 - low, 1 + high) * advantage * logp
        else:
            if name == "gspo":
                ratio = torch.exp((logp - old).mean()).expand(len(logp))
            tokens = -torch.min(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
        sums.append(tokens.sum())
        counts.append(len(logp))
    if normalise == "token":
        return sum(sums) / sum(counts)
    if normalise == "step":
        return sum(s / n for s, n in zip(sums, counts, strict=True)) / len(sums)
    return sum(sums)


def gradient(model, loss):
    """All gradients as one flat vector; the model is left without."""
    import torch

    model.zero_grad(set_to_none=True)
    loss.backward()
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()])
    model.zero_grad(set_to_none=True)
    return flat


def relative(a, b) -> float:
    """‖a - b‖ / ‖b‖."""
    return float((a - b).norm() / b.norm())
