"""The glossary: definitions of terms, shown as tooltips on pages and as docs/glossary.md."""

from __future__ import annotations

from core.pool.state.sharedsql import READY

WORDS: dict[str, str] = {
    "step": "One model call: the state (prompt tokens), the action (response tokens), log-probs, reward.",
    "trajectory": "The ordered steps of one agent attempt at one task.",
    "rollout": "One run of an agent on a task; it produces a trajectory.",
    "prompt group": "The trajectories of one task prompt: the comparison set of GRPO.",
    "channel": "A partition of the pool: train, val, or any name.",
    "source": "Where a step came from: blackbox, whitebox, service, import.",
    "run": "A named experiment: its trajectories are compared with those of other runs.",
    "agent": "Name of the program that made the call.",
    "rollout log-probs": "log μ(token) under the policy that sampled it.",
    "token_source": "Where the token ids come from: engine, logprobs, whitebox, bytes, retokenized, edited, none.",
    "policy version": "Counter of the weights that sampled a step.",
    "staleness": "The current policy version minus the step's; a trajectory is as stale as its stalest step.",
    "reward": "Scalar on a step or a trajectory. Unscored is not 0.",
    "return": "Sum of the rewards from a step on.",
    "baseline": "The value that is subtracted from a return or reward to get an advantage.",
    "advantage": "Return or reward relative to a baseline; None means unassigned.",
    "edited answer": "An answer that a person changed, for SFT and DPO. Its tokens were not sampled.",
    "verifier": "A function that scores a trajectory.",
    "annotation": "An appended opinion: reward, quality, trainable, tag, note. Facts never change.",
    "complete": "The trajectory is closed: it gets no further steps.",
    "ready": f"{READY}.",
    "scored": "The trajectory has a reward: set on it, or summed from its steps.",
    "trainable": "A main call sampled without errors, unless a label says otherwise.",
    "view": "A named, saved filter over the pool.",
    "recipe": "Algorithm and its settings: batch size, n rollouts, freshness, reward policy, budgets.",
    "plan": "The deterministic result of view + recipe: what is trained, what is excluded, and why.",
    "batch": "A plan that a trainer gets, by fetch or as files.",
    "dataset version": "An immutable, hashed selection with full provenance.",
    "prefix tree": "Compressed trie of a group's token sequences; packed depth first.",
    "token ratio": "Packed tokens divided by original tokens, after sharing prefixes.",
    "loss mask": "1 on sampled tokens of trainable steps.",
    "transition": "How a step's prompt relates to its parent: extends, realigned, tail_replaced, compacted, forked.",
    "call kind": "The purpose of a call: main, auxiliary (titles, summaries), retry, subagent.",
    "uncertain": "The reason why the call's trajectory is not certain; plans exclude the step until it is labelled.",
    "identity_source": "How the trajectory was identified: path, header, key, harness, model_name, inferred, producer.",
    "ingest lag": "Age of the oldest captured call that is not in the pool yet.",
    "dropped": "Calls answered but not captured. Must be 0.",
    "latency": "From the call's arrival at the gateway to the end of the answer, engine included.",
    "mismatch": "Token counts that the engine reported disagree; the step is marked, never padded or cut.",
}


def define(word: str) -> str | None:
    """The definition of a glossary word, or None when it has none."""
    return WORDS.get(word)
