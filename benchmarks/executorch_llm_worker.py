"""Runs a Qwen3 model on ExecuTorch with XNNPACK for benchmarks/llm.py; started in ExecuTorch's own environment.

    python executorch_llm_worker.py FOLDER CONTEXT THREADS      FOLDER holds config.json and weights/NAME.npy

The model is written as those of ExecuTorch's own examples are: linear layers by torchao in 8da4w with groups of 32,
cache and attention by its custom operators. Answers as llama_worker.py does.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackDynamicallyQuantizedPartitioner,
    XnnpackPartitioner,
)
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.sym_shape_eval_pass import ConstraintBasedSymShapeEvalPass
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401 - registers torch.ops.llama, here and at run time
from executorch.extension.pybindings import portable_lib
from executorch.runtime import Runtime
from torch import Tensor, nn
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, PerGroup, quantize_
from torchao.utils import unwrap_tensor_subclass

CHUNK = 512


class Attention(nn.Module):
    def __init__(self, config: dict, context: int) -> None:
        super().__init__()
        width, self.channels = config["hidden_size"], config["head_dim"]
        heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
        self.q_proj, self.o_proj = linear(width, heads * self.channels), linear(heads * self.channels, width)
        self.k_proj, self.v_proj = linear(width, groups * self.channels), linear(width, groups * self.channels)
        self.q_norm, self.k_norm = nn.RMSNorm(self.channels, 1e-6), nn.RMSNorm(self.channels, 1e-6)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, context, groups, self.channels), persistent=False)

    def forward(self, x: Tensor, start: int, turn: tuple[Tensor, Tensor]) -> Tensor:
        shape = (1, x.shape[1], -1, self.channels)
        query = turned(self.q_norm(self.q_proj(x).view(shape)), turn)
        key = turned(self.k_norm(self.k_proj(x).view(shape)), turn)
        torch.ops.llama.update_cache(key, self.keys, start)
        torch.ops.llama.update_cache(self.v_proj(x).view(shape), self.values, start)
        found = torch.ops.llama.custom_sdpa(query, self.keys, self.values, start, None, 0, True)
        return self.o_proj(found.reshape(1, x.shape[1], -1))


class Layer(nn.Module):
    def __init__(self, config: dict, context: int) -> None:
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width, 1e-6), nn.RMSNorm(width, 1e-6)
        self.self_attn = Attention(config, context)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": linear(width, inner),
                "up_proj": linear(width, inner),
                "down_proj": linear(inner, width),
            }
        )

    def forward(self, x: Tensor, start: int, turn: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), start, turn)
        y = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](nn.functional.silu(self.mlp["gate_proj"](y)) * self.mlp["up_proj"](y))


class Qwen3(nn.Module):
    """tokens (1, length), positions (length) that follow each other -> logits behind the last, (1, vocabulary)."""

    def __init__(self, config: dict, context: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config, context) for _ in range(config["num_hidden_layers"]))
        self.norm = nn.RMSNorm(config["hidden_size"], 1e-6)
        self.lm_head = linear(config["hidden_size"], config["vocab_size"])
        half = torch.arange(0, config["head_dim"], 2) / config["head_dim"]
        angles = torch.arange(context)[:, None] / config["rope_parameters"]["rope_theta"] ** half
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        start = positions[0].item()
        torch._check_is_size(start)
        torch._check(start < self.cos.shape[0])
        turn = self.cos[positions][None, :, None], self.sin[positions][None, :, None]
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, start, turn)
        return self.lm_head(self.norm(x[:, -1:]))[:, 0]


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding, x (1, length, heads, channels)."""
    first, second = x.chunk(2, -1)
    return x * turn[0] + torch.cat((-second, first), -1) * turn[1]


def write(folder: Path, path: Path, context: int) -> None:
    config = json.loads((folder / "config.json").read_text())
    with torch.device("meta"):
        empty = Qwen3(config, 1)
    names = empty.state_dict().keys()
    files = {f.stem.removeprefix("model."): f for f in (folder / "weights").glob("*.npy")}
    model = Qwen3(config, context)
    model.load_state_dict({name: torch.from_numpy(np.load(files[name])) for name in names})
    kind = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32))
    quantize_(model.eval(), kind)
    unwrap_tensor_subclass(model)
    length = torch.export.Dim("length", min=1, max=CHUNK)
    given = (torch.zeros(1, 3, dtype=torch.int64), torch.arange(3))
    with torch.no_grad():
        exported = torch.export.export(model, given, dynamic_shapes=({1: length}, {0: length}))
    edge = to_edge_transform_and_lower(
        exported,
        partitioner=[XnnpackDynamicallyQuantizedPartitioner(), XnnpackPartitioner()],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    config = ExecutorchBackendConfig(
        extract_delegate_segments=True,
        memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False),
        sym_shape_eval_pass=ConstraintBasedSymShapeEvalPass(),
    )
    with path.open("wb") as file:
        edge.to_executorch(config).write_to_file(file)


class Engine:
    def __init__(self, path: Path, threads: int) -> None:
        portable_lib._unsafe_reset_threadpool(threads)
        self.program = Runtime.get().load_program(path)
        self.method = self.program.load_method("forward")
        self.held = 0

    def feed(self, tokens: list[int]) -> Tensor:
        for first in range(0, len(tokens), CHUNK):
            part = tokens[first : first + CHUNK]
            where = torch.arange(self.held, self.held + len(part))
            (found,) = self.method.execute([torch.tensor([part]), where])
            self.held += len(part)
        return found


def main(folder: Path, context: int, threads: int) -> None:
    path = folder / "executorch.pte"
    if not path.exists():
        write(folder, folder / "unfinished", context)
        (folder / "unfinished").rename(path)
    start = time.perf_counter()
    engine = Engine(path, threads)
    print(json.dumps([time.perf_counter() - start, f"wheel {version('executorch')}"]), flush=True)
    filled = 0
    for line in sys.stdin:
        ((what, args),) = json.loads(line).items()
        before = args[0] if what == "decode" else 0
        if filled < before:
            engine.held = 0
            engine.feed([1 + i % 1000 for i in range(before)])
            filled = before
        engine.held = before  # what lies behind it is written over
        start = time.perf_counter()
        if what == "logits":
            filled = 0
            print(json.dumps(engine.feed(args[0])[0].tolist()), flush=True)
            continue
        if what == "prefill":
            engine.feed([1 + i % 1000 for i in range(args[0])])
        else:
            for _ in range(args[1]):
                engine.feed([7])
        print(json.dumps(time.perf_counter() - start), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
