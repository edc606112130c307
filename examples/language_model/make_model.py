"""Train a tiny chat model on a few questions, and save it with its tokenizer, as transformers does.

    python examples/language_model/make_model.py FOLDER
    delegate llm export FOLDER -o tiny.dlg --context 128 --chunk 16
    delegate llm chat tiny.dlg

The model only knows these questions. It shows the whole way without a download.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import tokenizers
import torch
from delegate_llm.aot.hugging_face import transformers
from torch import nn

CHATS = {
    "What is a backend?": "A vendor library that runs a part of a model.",
    "What is a partition?": "A group of nodes that one backend runs.",
    "What is a kernel?": "A NumPy function that runs one operator.",
    "Who runs the rest?": "Portable kernels run the rest.",
    "Does it need torch?": "No, the file runs without torch.",
}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system message') }}"
    "{% elif m.role == 'user' %}Q: {{ m.content | trim }} A:{% else %}{{ m.content }}{{ eos_token }}{% endif %}"
    "{% endfor %}"
)
SPECIAL = ("<s>", "</s>")


def make_tokenizer() -> tokenizers.Tokenizer:
    """Return a tokenizer of byte pairs, trained on the chats."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=[*SPECIAL], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([f"Q: {q} A: {a}" for q, a in CHATS.items()], trainer)
    return tokenizer


def main() -> None:
    """Train, and save the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder to write")
    parser.add_argument("--steps", type=int, default=200, help="training steps; 0: random weights")
    options = parser.parse_args()
    if options.steps < 0:
        parser.error(f"--steps {options.steps}: it must be 0 or more")
    if options.folder.exists() and not options.folder.is_dir():
        parser.error(f"{options.folder} is not a folder")

    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    start, end = (tokenizer.token_to_id(token) for token in SPECIAL)
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, bos_token_id=start,
        eos_token_id=end, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    texts = [tokenizer.encode(f"{SPECIAL[0]}Q: {q} A: {a}{SPECIAL[1]}").ids for q, a in CHATS.items()]
    tokens = torch.full((len(texts), max(map(len, texts))), -100)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=max(options.steps, 1))
    for step in range(options.steps):
        logits = model(tokens.clamp(min=end)).logits[:, :-1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}")

    model.save_pretrained(options.folder)
    tokenizer.save(str(options.folder / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "bos_token": SPECIAL[0], "eos_token": SPECIAL[1]}
    (options.folder / "tokenizer_config.json").write_text(json.dumps(settings))
    print(f"saved {options.folder}")


if __name__ == "__main__":
    main()
