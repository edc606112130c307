"""Runs a Qwen3 model on llama.cpp for benchmarks/llm.py; started in an environment with llama-cpp-python and gguf.

    python llama_worker.py FOLDER CONTEXT THREADS      FOLDER holds config.json and weights/NAME.npy

Speaks JSON lines: what it is asked on standard input, the answer on standard output, seconds or logits.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def write(folder: Path, path: Path) -> None:
    """The model in Q4_0, norms in float32; the head is the embedding."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    for file in sorted((folder / "weights").glob("*.npy")):
        name = file.stem
        if name == "lm_head.weight":
            continue
        values = np.load(file)
        if values.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q4_0
            packed = gguf.quants.quantize(values, kind)
            writer.add_tensor(named(name), packed, raw_dtype=kind)
        else:
            writer.add_tensor(named(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def named(name: str) -> str:
    """As llama.cpp calls a weight of transformers."""
    name = name.removeprefix("model.").removesuffix(".weight")
    if name.startswith("layers."):
        _, number, rest = name.split(".", 2)
        return f"blk.{number}.{LAYER[rest]}.weight"
    return {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight"}[name]


class Engine:
    """A context of llama.cpp; one sequence."""

    def __init__(self, path: Path, context: int, threads: int) -> None:
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        if hasattr(options, "use_extra_bufts"):
            options.use_extra_bufts = False  # its path for AMX crashed where it was tried
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        given = llama_cpp.llama_context_default_params()
        given.n_ctx, given.n_batch, given.n_ubatch = context, 512, 512
        given.n_threads = given.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, given)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.held = 0

    def cut(self, count: int) -> None:
        """Forget all but the first tokens."""
        llama_cpp.llama_memory_seq_rm(self.memory, 0, count, -1)
        self.held = count

    def feed(self, tokens: list[int]) -> None:
        for start in range(0, len(tokens), 512):
            part = tokens[start : start + 512]
            given = (llama_cpp.llama_token * len(part))(*part)
            if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(given, len(part))):
                raise RuntimeError("llama.cpp cannot decode")
            self.held += len(part)
        llama_cpp.llama_synchronize(self.context)

    def logits(self) -> list[float]:
        found = llama_cpp.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(ctypes.cast(found, ctypes.POINTER(ctypes.c_float)), (self.vocabulary,)).tolist()


def main(folder: Path, context: int, threads: int) -> None:
    path = folder / "q4_0.gguf"
    if not path.exists():
        write(folder, path)
    start = time.perf_counter()
    engine = Engine(path, context, threads)
    print(json.dumps(time.perf_counter() - start), flush=True)
    for line in sys.stdin:
        ((what, args),) = json.loads(line).items()
        print(json.dumps(answer(engine, what, args)), flush=True)


def answer(engine: Engine, what: str, args: list) -> float | list[float]:
    """Seconds, or logits."""
    if what == "logits":
        engine.cut(0)
        engine.feed(args[0])
        return engine.logits()
    before = args[0] if what == "decode" else 0
    if engine.held < before or not before:
        engine.cut(0)
        engine.feed([1 + i % 1000 for i in range(before)])
    engine.cut(before)
    start = time.perf_counter()
    if what == "prefill":
        engine.feed([1 + i % 1000 for i in range(args[0])])
    else:
        for _ in range(args[1]):
            engine.feed([7])
            llama_cpp.llama_get_logits_ith(engine.context, -1)
    return time.perf_counter() - start


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
