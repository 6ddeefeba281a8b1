"""Make the shipped tokenizer again: ``python -m core.serving.train_tokenizer [--out DIR]``.

A byte-level BPE over ``corpus.documents``. Two choices make a conversation's tokens stable over turns:
special tokens are always cut out first, and every newline is a piece of its own. The template puts one or
the other at each border between what is known and what follows, so encoding the parts and encoding the
whole give the same ids.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from core.serving.corpus import documents
from core.serving.tokenizer import ASSETS, END_OF_TEXT, END_OF_TURN

SEED = 20260101
N_DOCUMENTS = 12_000
VOCAB_SIZE = 4096
MAX_LENGTH = 32_768

CONTROL = (END_OF_TEXT, "<|im_start|>", END_OF_TURN)
"""Special: left out of decoded text."""

MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""One token each, but part of the text."""

N_RESERVED = 7

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+"
    r"|\r?\n"
    r"|[^\S\n]+(?!\S)"
    r"|[^\S\n]+"
)
"""Words with the sign before them, digits one by one, runs of signs, single newlines, blanks."""


def train(out: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` to ``out``."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    reserved = [f"<|reserved_{i}|>" for i in range(N_RESERVED)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(CONTROL) - len(MARKUP) - N_RESERVED,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents(SEED, N_DOCUMENTS), trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in MARKUP])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in reserved])
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="train the shipped tokenizer")
    parser.add_argument("--out", type=Path, default=ASSETS)
    train(parser.parse_args().out)


if __name__ == "__main__":
    main()
