#!/usr/bin/env bash
# transformers ignores the rope scaling that a GGUF file states, so positions are wrong.
#
# Versions: transformers 5.23.0, accelerate 1.15.0, gguf 0.19.0, torch 2.13.0, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: a small llama or qwen2 file, written by the gguf package, with rope.scaling.type and rope.scaling.factor.
# Expected: the logits of a model with that scaling, or an error that the loader does not know the keys.
# Seen: the logits are bit-equal to those of a file without the keys, and the loaded configuration has the type
#   "default". The same weights with the scaling set by hand give other logits. Neither a warning nor an error appears.
# Output seen:
#   llama linear: default, equals no scaling: True    llama yarn: default, equals no scaling: True
#   qwen2 linear: default, equals no scaling: True    qwen2 yarn: default, equals no scaling: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.23.0 accelerate==1.15.0 gguf==0.19.0 torch==2.13.0 \
    numpy==2.4.6
cat > "$folder/rope.py" <<'PY'
import sys

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM

CASES = [("llama", "linear"), ("llama", "yarn"), ("qwen2", "linear"), ("qwen2", "yarn")]
EXPECTED = ("default", True)  # the loaded type of rope, and whether the logits are those of a file without scaling
HIDDEN, HEADS, WIDTH, VOCABULARY, LENGTH = 64, 4, 128, 64, 40
tokens = torch.arange(LENGTH)[None]


def write(path, architecture, scaling):
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_vocab_size(VOCABULARY)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    if scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling))
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)
    shapes = {"token_embd": (VOCABULARY, HIDDEN), "output": (VOCABULARY, HIDDEN), "output_norm": (HIDDEN,)}
    shapes |= {f"blk.0.{name}_norm": (HIDDEN,) for name in ("attn", "ffn")}
    shapes |= {f"blk.0.attn_{name}": (HIDDEN, HIDDEN) for name in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{name}": (WIDTH, HIDDEN) for name in ("gate", "up")} | {"blk.0.ffn_down": (HIDDEN, WIDTH)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape, dtype=np.float32) / 4)
    if architecture == "qwen2":
        for name in "qkv":
            writer.add_tensor(f"blk.0.attn_{name}.bias", rng.standard_normal(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load(architecture, scaling):
    write(f"{sys.argv[1]}/model.gguf", architecture, scaling)
    return AutoModelForCausalLM.from_pretrained(sys.argv[1], gguf_file="model.gguf", dtype=torch.float32).eval()


@torch.no_grad()
def judge(architecture, scaling):
    plain, scaled = load(architecture, None), load(architecture, scaling)
    logits = plain(tokens).logits
    plain.config.rope_parameters = {"rope_type": scaling, "factor": 4.0, "rope_theta": 10000.0,
                                    "original_max_position_embeddings": 64}
    by_hand = type(plain)(plain.config).eval()
    by_hand.load_state_dict(plain.state_dict())
    assert (by_hand(tokens).logits - logits).abs().max() > 0.01
    return scaled.config.rope_parameters["rope_type"], torch.equal(scaled(tokens).logits, logits)


seen = {case: judge(*case) for case in CASES}
for (architecture, scaling), (kind, equal) in seen.items():
    print(f"{architecture} {scaling}: {kind}, equals no scaling: {equal}")
raise SystemExit(0 if set(seen.values()) == {EXPECTED} else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/rope.py" "$folder"
