"""Trains the shipped tokenizer: ``python -m core.serving.train_tokenizer [--out DIR]``.

It is a byte-level BPE over ``corpus.documents``. Two rules keep a conversation's tokens stable over turns: special
tokens are split off first, and every newline is a separate pre-token. The template puts one of the two between
messages, so encoding messages separately gives the same ids as encoding the whole conversation.
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
"""Special tokens, which are left out of decoded text."""

MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Single tokens that stay in decoded text."""

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
"""Pre-tokens: words with one preceding sign, single digits, runs of signs, single newlines, white space."""


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
