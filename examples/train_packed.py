"""Trains a transformers model on exported packed rows.

python examples/train_packed.py ROWS.safetensors MODEL_DIR
"""

import sys

import torch
from transformers import AutoModelForCausalLM

from core.export.packed_tree import read_rows, read_totals
from core.tree.attention import packed_hidden, use_tree_attention
from core.tree.losses import batch_loss
from core.tree.scores import token_scores

path, model_dir = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
use_tree_attention(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    losses = []
    for row, terms, _ in read_rows(path):
        scores = token_scores(model, packed_hidden(model, row), terms)
        losses.append(batch_loss("policy_gradient", scores.logp, terms, read_totals(path)))
        losses[-1].backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {sum(losses).item():.6f}")
