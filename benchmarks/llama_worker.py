"""Runs a Qwen3 model on llama.cpp for benchmarks/llm.py; started in an environment with llama.cpp and gguf.

    python llama_worker.py FOLDER CONTEXT THREADS TALKS      FOLDER holds config.json and weights/NAME.npy

The environment has llama.cpp in one of two packages, whose C interface is called here: xllamacpp, a wheel for AVX2, or
llama_cpp (llama-cpp-python), which is built from source for the CPU of the machine. Speaks JSON lines: what it is asked
on standard input, the answer on standard output, seconds or logits. The first line has the seconds of loading, and
how llama.cpp was built.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
import time
from ctypes import c_bool, c_char_p, c_float, c_int, c_int8, c_int32, c_uint32, c_void_p
from pathlib import Path

import gguf
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


class _ModelOptions(ctypes.Structure):
    """Passed on as llama.cpp fills it; larger than it is in any version, which the callee does not see."""

    _fields_ = (("rest", c_uint32 * 128),)


class _ContextOptions(ctypes.Structure):
    """The first fields are those of all versions of the last years; `Engine` checks their defaults."""

    _fields_ = (("n_ctx", c_uint32), ("n_batch", c_uint32), ("n_ubatch", c_uint32), ("n_seq_max", c_uint32),
                ("rest", c_uint32 * 124))  # fmt: skip


class _Batch(ctypes.Structure):
    _fields_ = (("n_tokens", c_int32), ("token", ctypes.POINTER(c_int32)), ("embd", c_void_p),
                ("pos", ctypes.POINTER(c_int32)), ("n_seq_id", ctypes.POINTER(c_int32)),
                ("seq_id", ctypes.POINTER(ctypes.POINTER(c_int32))), ("logits", ctypes.POINTER(c_int8)))  # fmt: skip


# Function, without the prefix "llama_" -> what it gives and takes.
FUNCTIONS = {
    "model_default_params": (_ModelOptions,),
    "model_load_from_file": (c_void_p, c_char_p, _ModelOptions),
    "model_get_vocab": (c_void_p, c_void_p),
    "vocab_n_tokens": (c_int32, c_void_p),
    "context_default_params": (_ContextOptions,),
    "init_from_model": (c_void_p, c_void_p, _ContextOptions),
    "set_n_threads": (None, c_void_p, c_int32, c_int32),
    "get_memory": (c_void_p, c_void_p),
    "memory_seq_rm": (c_bool, c_void_p, c_int32, c_int32, c_int32),
    "batch_init": (_Batch, c_int32, c_int32, c_int32),
    "decode": (c_int32, c_void_p, _Batch),
    "get_logits_ith": (ctypes.POINTER(c_float), c_void_p, c_int32),
    "synchronize": (None, c_void_p),
    "log_set": (None, c_void_p, c_void_p),
    "print_system_info": (c_char_p,),
}
LOG = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)
SILENT = LOG(lambda *_: None)
CHUNK = 512


# Package -> the files in its folder that may be llama.cpp.
PACKAGES = {"llama_cpp": "lib/libllama.*", "xllamacpp": "xllamacpp.*.so"}


def library_file() -> Path:
    """That of llama.cpp, in the first package that is installed."""
    for package, pattern in PACKAGES.items():
        if (spec := importlib.util.find_spec(package)) and spec.origin:
            return min(Path(spec.origin).parent.glob(pattern))
    raise SystemExit(f"no llama.cpp: install one of {', '.join(PACKAGES)}")


def features(info: str) -> str:
    """The instructions that llama.cpp was built for, from its line "CPU : AVX = 1 | AVX2 = 1 | LLAMAFILE = 1 | "."""
    names = [part.split(" = ")[0].split(" : ")[-1].strip() for part in info.split("|") if part.strip().endswith("= 1")]
    return ", ".join(n for n in names if n.startswith(("AVX", "AMX", "NEON", "SVE", "DOTPROD", "MATMUL"))) or "none"


def library() -> ctypes.CDLL:
    """llama.cpp, with the types of what is called."""
    found = ctypes.CDLL(str(library_file()))
    for name, (gives, *takes) in FUNCTIONS.items():
        function = getattr(found, f"llama_{name}")
        function.restype, function.argtypes = gives, takes
    found.llama_log_set(ctypes.cast(SILENT, c_void_p), None)
    return found


class Engine:
    """A context of llama.cpp, with a sequence for each of several talks."""

    def __init__(self, path: Path, context: int, threads: int, talks: int) -> None:
        self.lib = library()
        self.model = self.lib.llama_model_load_from_file(str(path).encode(), self.lib.llama_model_default_params())
        given = self.lib.llama_context_default_params()
        if (given.n_ctx, given.n_batch, given.n_ubatch, given.n_seq_max) != (512, 2048, CHUNK, 1):
            raise RuntimeError("llama.cpp has other options than this knows")
        given.n_ctx, given.n_batch, given.n_seq_max = context * talks, CHUNK, talks
        self.context = self.lib.llama_init_from_model(self.model, given)
        self.lib.llama_set_n_threads(self.context, threads, threads)
        self.memory = self.lib.llama_get_memory(self.context)
        self.vocabulary = self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(self.model))
        self.held = [0] * talks
        self.batch = self.lib.llama_batch_init(CHUNK, 0, 1)

    def cut(self, talk: int, count: int) -> None:
        """Forget all but the first tokens."""
        self.lib.llama_memory_seq_rm(self.memory, talk, count, -1)
        self.held[talk] = count

    def feed(self, tokens: list[int], talk: int = 0) -> None:
        for start in range(0, len(tokens), CHUNK):
            self.call([(token, talk) for token in tokens[start : start + CHUNK]], logits_of=1)

    def call(self, tokens: list[tuple[int, int]], logits_of: int) -> None:
        """Tokens of talks in one call; logits of the last ones."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, (token, talk) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, self.held[talk], 1, talk
            batch.logits[i] = i >= len(tokens) - logits_of
            self.held[talk] += 1
        if self.lib.llama_decode(self.context, batch):
            raise RuntimeError("llama.cpp cannot decode")
        self.lib.llama_synchronize(self.context)

    def logits(self) -> list[float]:
        found = self.lib.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(found, (self.vocabulary,)).tolist()


def main(folder: Path, context: int, threads: int, talks: int) -> None:
    path = folder / "q4_0.gguf"
    if not path.exists():
        write(folder, folder / "unfinished.gguf")
        (folder / "unfinished.gguf").rename(path)
    start = time.perf_counter()
    engine = Engine(path, context, threads, talks)
    built = features(engine.lib.llama_print_system_info().decode())
    print(json.dumps([time.perf_counter() - start, built]), flush=True)
    for line in sys.stdin:
        ((what, args),) = json.loads(line).items()
        print(json.dumps(answer(engine, what, args)), flush=True)


def answer(engine: Engine, what: str, args: list) -> float | list[float]:
    """Seconds, or logits."""
    if what == "logits":
        engine.cut(0, 0)
        engine.feed(args[0])
        return engine.logits()
    before = 0 if what == "prefill" else args[0]
    talks = range(len(engine.held) if what == "batch" else 1)
    for talk in talks:
        if engine.held[talk] < before:
            engine.cut(talk, 0)
            engine.feed([1 + i % 1000 for i in range(before)], talk)
        engine.cut(talk, before)
    start = time.perf_counter()
    if what == "prefill":
        engine.feed([1 + i % 1000 for i in range(args[0])])
    else:
        for _ in range(args[1]):
            engine.call([(7, talk) for talk in talks], logits_of=len(talks))
            engine.lib.llama_get_logits_ith(engine.context, -1)
    return time.perf_counter() - start


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
