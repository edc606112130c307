"""Compile a text encoder of transformers for any batch and length, and find similar sentences with it.

    python examples/text_encoder/encode.py                          a small BERT with random weights
    python examples/text_encoder/encode.py --folder FOLDER          a model that transformers saved, with its tokenizer

The embedding of a sentence is the mean of its last hidden states, with length 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from torch import nn
from torch.export import Dim

import delegate
from delegate.errors import DelegateError

SENTENCES = (
    "The train to the city leaves at nine.",
    "At nine the train leaves to the city.",
    "She plays the piano every evening.",
    "Every evening she plays the guitar.",
    "The soup needs more salt.",
    "More salt is what the soup needs.",
)
MOST_TOKENS, MOST_SENTENCES = 64, 32


class Encoder(nn.Module):
    """tokens and mask (batch, length) -> embeddings (batch, width)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state
        weights = mask[:, :, None].to(hidden.dtype)
        return nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=1)


def random_encoder() -> tuple[Encoder, tokenizers.Tokenizer]:
    """Return a small BERT with random weights, and a tokenizer of the words in the sentences."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=tokenizer.get_vocab_size(), num_hidden_layers=2, hidden_size=64, num_attention_heads=4,
        intermediate_size=128,
    )  # fmt: skip
    return Encoder(transformers.BertModel(config, add_pooling_layer=False)).eval(), tokenizer


def saved_encoder(folder: Path) -> tuple[Encoder, tokenizers.Tokenizer]:
    """Return the model and the tokenizer of a folder."""
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            sys.exit(f"error: there is no {name} in {folder}: pass a folder that transformers saved")
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    return Encoder(model).eval(), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def main() -> None:
    """Compile, save, and print the most similar sentence of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("encoder.dlg"), help="file to write")
    parser.add_argument("--folder", type=Path, help="a folder that transformers saved; default: random weights")
    parser.add_argument("--backend", action="append", help="backend; several in order of preference; default: all")
    options = parser.parse_args()
    model, tokenizer = saved_encoder(options.folder) if options.folder else random_encoder()
    tokenizer.enable_padding()
    tokenizer.enable_truncation(MOST_TOKENS)
    encoded = tokenizer.encode_batch(SENTENCES)
    tokens = np.array([e.ids for e in encoded])
    mask = np.array([e.attention_mask for e in encoded])

    sizes = {0: Dim("batch", min=2, max=MOST_SENTENCES), 1: Dim("length", min=2, max=MOST_TOKENS)}
    inputs = (torch.from_numpy(tokens), torch.from_numpy(mask))
    with torch.no_grad():
        exported = torch.export.export(model, inputs, dynamic_shapes=(sizes, sizes))
        expected = model(*inputs).numpy()
    program = delegate.to_backend(exported, options.backend)
    print(program.report.summary)
    program.save(options.output)

    with delegate.load(options.output) as loaded:  # needs no torch
        embeddings = loaded(tokens, mask)
        pair = loaded(tokens[:2, : int(mask[:2].sum(1).max())], mask[:2, : int(mask[:2].sum(1).max())])
    print(f"largest difference from torch: {np.abs(embeddings - expected).max():.2g}")
    print(f"the same sentences in a smaller batch: {np.abs(pair - embeddings[:2]).max():.2g}")
    similarity = embeddings @ embeddings.T - 2 * np.eye(len(embeddings))
    for sentence, row in zip(SENTENCES, similarity, strict=True):
        print(f"{sentence:42} {SENTENCES[int(row.argmax())]} ({row.max():.2f})")


if __name__ == "__main__":
    try:
        main()
    except (DelegateError, OSError) as error:
        sys.exit(f"error: {error}")
