"""Step values from a critic: a transformers model with a value head of one label.

V(s) of a step is the head's output at the last token of its prompt, the state before the step's first response token.
Steps of a trajectory that share a row are valued in one forward pass: attention is causal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from core.batch.layout import TokenReader
from core.batch.plan import Plan
from core.batch.rows import training_rows
from core.errors import InvalidInput

HEADS = {
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
}
"""Ending of the architecture's name -> the class that loads it. Both keep their head as ``score``."""


def value_steps(plan: Plan, reader: TokenReader, model_dir: Path, *, device: str = "cpu") -> pa.Table:
    """Value every step of a plan: (step_uid, value float64).

    Raises:
        InvalidInput: no model with a value head of one label in the folder.
    """
    import torch

    model = load_critic(model_dir).to(device).eval()
    uids: list[str] = []
    values: list[float] = []
    with torch.inference_mode():
        for rows in training_rows(plan, reader, merge=True):
            owner = rows.row_of_step
            for i, at in enumerate(rows.slices()):
                mine = np.flatnonzero(owner == i)
                states = rows.begins[mine] - at.start - 1
                if (states < 0).any():
                    raise InvalidInput("a step without a prompt has no state to value", field="view")
                ids = torch.from_numpy(rows.ids[at].astype(np.int64)).unsqueeze(0).to(device)
                try:
                    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
                    values_of_chunk = model.score(hidden[torch.from_numpy(states).to(device)])[:, 0]
                except (IndexError, RuntimeError, TypeError, AttributeError) as error:
                    row = rows.ids[at]
                    raise InvalidInput(
                        f"the model can't read a row of {len(row)} tokens, the highest {row.max()}: {error}",
                        field="model_dir",
                        hint="a critic of the policy's own vocabulary and context length",
                    ) from error
                if not bool(torch.isfinite(values_of_chunk).all()):
                    raise InvalidInput("the model's values are not finite", field="model_dir")
                values += values_of_chunk.double().tolist()
                uids += [plan.step_uids[place] for place in rows.steps[mine].tolist()]
    return pa.table({"step_uid": pa.array(uids, pa.string()), "value": pa.array(values, pa.float64())})


def load_critic(model_dir: Path) -> Any:
    """Load a folder's model, float32. InvalidInput describes the problem with it."""
    import torch
    import transformers

    try:
        config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"no model in {model_dir}: {error}", field="model_dir") from error
    names = config.get("architectures") if isinstance(config, dict) else None
    kind = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else "nothing"
    head = next((loader for ending, loader in HEADS.items() if kind.endswith(ending)), None)
    if head is None:
        raise InvalidInput(f"{kind} has no value head", field="model_dir", hint="one of the kinds " + ", ".join(HEADS))
    try:
        # Weights are data: no code of the folder is run.
        model = getattr(transformers, head).from_pretrained(
            model_dir, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        # transformers reads untrusted files here: any exception is reported as a problem of the folder.
        raise InvalidInput(
            f"the model in {model_dir} can't be loaded: {type(error).__name__}: {str(error)[:500]}",
            field="model_dir",
            hint="a folder with config.json and model.safetensors, as save_pretrained writes it",
        ) from error
    if model.config.num_labels != 1:
        raise InvalidInput(f"the head has {model.config.num_labels} labels, a value head has 1", field="model_dir")
    if not hasattr(model, "score"):
        raise InvalidInput(f"{kind} keeps its head elsewhere than in 'score'", field="model_dir")
    return model
