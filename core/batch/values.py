"""Values by a critic that the user names: a transformers model with a value head of one label.

V(s) of a step is the head's output at the last token of its prompt, the state before the step's first response token.
Steps of a trajectory that share a row are valued in one forward pass: what comes later can't be seen from there.
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
            owner = np.searchsorted(rows.offsets, rows.begins, side="right") - 1
            for i, at in enumerate(rows.slices()):
                mine = np.flatnonzero(owner == i)
                states = rows.begins[mine] - at.start - 1
                if (states < 0).any():
                    raise InvalidInput("a step without a prompt has no state to value", field="view")
                ids = torch.from_numpy(rows.ids[at].astype(np.int64)).unsqueeze(0).to(device)
                hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
                found = model.score(hidden[torch.from_numpy(states).to(device)])[:, 0]
                values += found.double().tolist()
                uids += [plan.step_uids[place] for place in rows.steps[mine].tolist()]
    return pa.table({"step_uid": pa.array(uids, pa.string()), "value": pa.array(values, pa.float64())})


def load_critic(model_dir: Path) -> Any:
    """The model in a folder, float32. InvalidInput names what is wrong with it."""
    import torch
    import transformers

    try:
        config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"no model in {model_dir}: {error}", field="model_dir") from error
    names = config.get("architectures") or ["nothing"]
    head = next((loader for ending, loader in HEADS.items() if names[0].endswith(ending)), None)
    if head is None:
        raise InvalidInput(
            f"{names[0]} has no value head", field="model_dir", hint="one of the kinds " + ", ".join(HEADS)
        )
    model = getattr(transformers, head).from_pretrained(model_dir, dtype=torch.float32, local_files_only=True)
    if model.config.num_labels != 1:
        raise InvalidInput(f"the head has {model.config.num_labels} labels, a value head has 1", field="model_dir")
    return model
