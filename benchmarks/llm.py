"""Decode and prefill of a language model beside llama.cpp and ExecuTorch: engines take turns, ratios are medians.

The model has Qwen3-0.6B's shape and random weights; `--layers` takes fewer of its layers. The others run on the same
weights, each in an environment of its own, as `make bench-peers` makes them. llama.cpp runs in Q4_0, in environments
with gguf and xllamacpp or llama-cpp-python (`--llama PYTHON...`). ExecuTorch runs in 8da4w with groups of 32
(`--executorch PYTHON`). All have 2 threads. A table shows how each was built, since wheels may lack instructions.

python -m benchmarks.llm [--layers N] [--variants NAME...] [--llama PYTHON...] [--executorch PYTHON] [--rounds N]
                        [--folder DIR] [--profile | --attention]

`--attention` compares kernels of attention over a cache, without a model: those of the installed kernel libraries, and
ONNX Runtime's GroupQueryAttention over the same memory.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # attention has threads of its own; before NumPy is imported

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from delegate_llm import Batch, Model

from benchmarks.engines import EXECUTORCH_PYTHON, ROOT, THREADS
from benchmarks.quantized import cpu
from delegate.kernels.cached_attention import OPERATOR
from delegate.kernels.half_precision import to_bfloat16
from delegate.kernels.table import KernelTable
from delegate.program.dtypes import DType
from delegate.registry import default_registry
from tests.support.zoo import libraries

SHAPE = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096,
    "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}  # fmt: skip
CONTEXT, CHUNK, TALKS = 2560, 128, 4
# Many rows, as prefill and batches have them, are faster in int8; one is in int4 where memory is slow.
MIXED = {"weights": "int4", "prefill_weights": "int8", "conversations": TALKS}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "int4": MIXED,
    "int4 with its head": {**MIXED, "head_weights": "int4"},
    "int4 with its head, cache float16": {**MIXED, "head_weights": "int4", "cache": "float16"},
    "int4 with its head in blocks of 128, cache float16": {
        **MIXED,
        "head_weights": "int4",
        "cache": "float16",
        "block": 128,
    },
    "int4, measured backends": {**MIXED, "backends": None},
    "int4, onnxruntime": {**MIXED, "backends": ("onnxruntime",)},
    "int8": {"weights": "int8", "conversations": TALKS},
    "int8, cache float16": {"weights": "int8", "conversations": TALKS, "cache": "float16"},
    "int8, cache bfloat16": {"weights": "int8", "conversations": TALKS, "cache": "bfloat16"},
    "int8, cache int8": {"weights": "int8", "conversations": TALKS, "cache": "int8"},
}
DEFAULT = [name for name in VARIANTS if name != "int4, onnxruntime"]
PAUSE = 0.15  # seconds before each turn
PROBE = list(range(100, 132))  # tokens whose logits are compared


class Ours:
    """A program of `delegate llm`, with a conversation per length of context, so that no turn has to fill one."""

    built = ""

    def __init__(self, path: Path) -> None:
        start = time.perf_counter()
        self.model = Model(path)
        self.load = time.perf_counter() - start
        self._talks: dict[int, Any] = {}

    def decode(self, context: int, count: int) -> float:
        """Seconds a token behind that many."""
        if context not in self._talks:
            self._talks[context] = self.model.conversation()
            self._talks[context].feed([1 + i % 1000 for i in range(context)])
        talk = self._talks[context]
        seconds = _seconds(lambda: [talk.feed([7]) for _ in range(count)])
        del talk.tokens[context:]  # the next turn writes over them
        return seconds / count

    def prefill(self, count: int) -> float:
        talk = self._talks.setdefault(0, self.model.conversation())
        seconds = _seconds(lambda: talk.feed([1 + i % 1000 for i in range(count)]))
        talk.tokens.clear()
        return seconds / count

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Behind the last, each taken in as decode does."""
        talk = self.model.conversation()
        return np.asarray([talk.feed([token]) for token in tokens][-1])

    def close(self) -> None:
        self._talks.clear()
        self.model.program.close()


class Peer:
    """Another engine, in a process of its own."""

    def __init__(self, python: Path, worker: str, folder: Path, *args: int) -> None:
        command = [str(python), str(Path(__file__).parent / worker), str(folder), *map(str, args)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.load, self.built = self._ask()

    def decode(self, context: int, count: int) -> float:
        return self._ask(decode=[context, count]) / count

    def together(self, context: int, count: int) -> float:
        """Seconds a call for all talks."""
        return self._ask(batch=[context, count]) / count

    def prefill(self, count: int) -> float:
        return self._ask(prefill=[count]) / count

    def logits(self, tokens: list[int]) -> np.ndarray:
        return np.array(self._ask(logits=[tokens]), np.float32)

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if request:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def export(folder: Path, layers: int, variants: Mapping[str, Mapping[str, Any]]) -> np.ndarray:
    """Write a file per variant, where it is not there yet, and the weights for peers; gives the logits of eager."""
    with libraries():
        import torch
        from delegate_llm import Options, export, measure_engines, read
        from delegate_llm.aot.decoder import Decoder, Head
        from delegate_llm.aot.engines import engine_table

        (folder / "config.json").write_text(json.dumps({**SHAPE, "num_hidden_layers": layers}))
        source = read(folder / "config.json")
        if not (folder / "weights").exists():
            (folder / "weights").mkdir()
            for name, value in source.load().state_dict().items():
                np.save(folder / "weights" / f"{name}.npy", value.numpy())
        for name, options in variants.items():
            if not (folder / f"{name}.dlg").exists():
                start = time.perf_counter()
                backends = options.get("backends", ("xnnpack",))
                given = {key: value for key, value in options.items() if key != "backends"}
                requested = Options(context=CONTEXT, chunk=CHUNK, **given)
                if backends is None:
                    backends = measure_engines(source, requested, lambda _: None) or None
                    took = time.perf_counter() - start
                    print(f"{name}: measured in {took:.0f} s\n{engine_table(backends or ())}", flush=True)
                    start = time.perf_counter()
                export(source, folder / f"{name}.dlg", requested, backends)
                print(f"{name}: exported in {time.perf_counter() - start:.0f} s", flush=True)
        with torch.no_grad():
            where, rows = torch.arange(len(PROBE)), torch.zeros(len(PROBE), dtype=torch.int64)
            hidden = Decoder(source.load(), len(PROBE), 1, "float32")(torch.tensor(PROBE), where, rows)
            return Head(source.load())(hidden[-1:])[0].numpy()


def sqnr(expected: np.ndarray, got: np.ndarray) -> float:
    """Signal to noise in dB."""
    return float(10 * np.log10((expected**2).mean() / ((expected - got) ** 2).mean()))


class Together:
    """A program of several talks, decoded one alone and all in one call."""

    def __init__(self, path: Path) -> None:
        self._batch = Batch(Model(path))
        for talk in self._batch.conversations:
            talk.feed(list(range(1, 129)))

    def decode(self, context: int, count: int) -> float:
        return self._time(context, count, lambda: self._batch.conversations[0].feed([7]))

    def together(self, context: int, count: int) -> float:
        """Seconds a call for all talks."""
        return self._time(context, count, lambda: self._batch.feed({row: [7] for row in range(TALKS)}))

    def _time(self, context: int, count: int, step: Callable[[], Any]) -> float:
        seconds = _seconds(lambda: [step() for _ in range(count)])
        for talk in self._batch.conversations:
            del talk.tokens[context:]
        return seconds / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=8, help="that each engine decodes in its turn")
    parser.add_argument("--variants", nargs="*", default=DEFAULT, choices=VARIANTS)
    llama = [ROOT / name / "bin" / "python" for name in (".venv-llama", ".venv-llama-native")]
    parser.add_argument(
        "--llama", type=Path, nargs="*", default=llama, help="Pythons of environments with llama.cpp and gguf"
    )
    parser.add_argument("--executorch", type=Path, default=EXECUTORCH_PYTHON, help="that of one with executorch")
    parser.add_argument("--folder", type=Path, help="where files are kept; else they are made anew")
    parser.add_argument("--profile", action="store_true", help="where a token's time goes, instead of the table")
    parser.add_argument("--attention", action="store_true", help="kernels of attention alone, instead of the table")
    given = parser.parse_args()
    print(f"{cpu()}, {THREADS} threads, {given.layers} layers\n")
    if given.attention:
        attention(given.layers, given.rounds)
        return
    variants = {name: VARIANTS[name] for name in given.variants}
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        exact = export(folder, given.layers, variants)
        if given.profile:
            profile(folder / f"{given.variants[0]}.dlg")
            return
        peers = _peers(folder, given.llama, given.executorch)
        own = {name: Ours(folder / f"{name}.dlg") for name in variants}
        engines: dict[str, Any] = {**own, **peers}
        measure(engines, peers, given.rounds, given.tokens)
        print("\n| engine | built for | load, s | SQNR of the logits to float32 eager, dB |\n|---|---|---|---|")
        for name, engine in engines.items():
            print(f"| {name} | {engine.built} | {engine.load:.2f} | {sqnr(exact, engine.logits(PROBE)):.1f} |")
        for engine in own.values():
            engine.close()
        holders: dict[str, Any] = {name: Together(folder / f"{name}.dlg") for name in variants}
        holders.update((name, peer) for name, peer in peers.items() if name.startswith("llama"))
        batched(holders, given.rounds)


def _peers(folder: Path, llamas: Sequence[Path], executorch: Path) -> dict[str, Peer]:
    """Those that are there, by name; the others are named. Each llama.cpp is named by the folder of its environment."""
    commands = {
        f"llama.cpp Q4_0 ({python.parents[1].name})": (python, "llama_worker.py", CONTEXT, THREADS, TALKS)
        for python in llamas
    }
    commands["ExecuTorch 8da4w"] = (executorch, "executorch_llm_worker.py", CONTEXT, THREADS)
    peers = {}
    for name, (python, worker, *options) in commands.items():
        if python.exists():
            peers[name] = Peer(python, worker, folder, *options)
        else:
            print(f"{name} is not measured: there is no {python} (make bench-peers)\n", flush=True)
    return peers


def measure(engines: Mapping[str, Any], peers: Mapping[str, Any], rounds: int, tokens: int) -> None:
    """Print a row per task: tokens a second of each engine, and those of ours over each peer's."""
    tasks: dict[str, Callable[[Any], float]] = {
        "decode at 128": lambda e: e.decode(128, tokens),
        "decode at 2,048": lambda e: e.decode(2048, tokens),
        "prefill of 512": lambda e: e.prefill(512),
    }
    over = f" (over {', '.join(peers)})" if peers else ""
    print(f"| tokens a second{over} | {' | '.join(engines)} |\n|{'---|' * (len(engines) + 1)}", flush=True)
    for task, work in tasks.items():
        times = _in_turns({name: partial(work, engine) for name, engine in engines.items()}, rounds)
        cells = []
        for name, own in times.items():
            ratios = ", ".join(f"{_ratio(times[peer], own):.2f}" for peer in peers)
            shown = f" ({ratios})" if peers and name not in peers else ""
            cells.append(f"{1 / statistics.median(own):.1f}{shown}")
        print(f"| {task} | {' | '.join(cells)} |", flush=True)


def batched(engines: Mapping[str, Any], rounds: int) -> None:
    """Print what one talk gives, and several in one call."""
    print(f"\n| {TALKS} talks behind 128 tokens, tokens a second | one | all in one call | ratio |\n|---|---|---|---|")
    for name, engine in engines.items():
        works = {"one": partial(engine.decode, 128, 4), "all": partial(engine.together, 128, 4)}
        times = _in_turns(works, rounds)
        one, together = (1 / statistics.median(times[kind]) for kind in works)
        ratio = TALKS * _ratio(times["one"], times["all"])
        print(f"| {name} | {one:.1f} | {TALKS * together:.1f} | {ratio:.2f} |", flush=True)


def _in_turns(works: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each gives in each round, behind one that does not count. A pause lets the threads of the last one sleep."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for count in range(rounds + 1):
        for name, work in works.items():
            time.sleep(PAUSE)
            seconds = work()
            if count:
                times[name].append(seconds)
    return times


def _ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def attention(layers: int, rounds: int) -> None:
    """Print a row per number of tokens and type of the cache: milliseconds of all layers, in each kernel."""
    kernels = {table.library: table for table in default_registry().kernels.tables() if OPERATOR in table}
    print(f"| tokens, queries, cache | {' | '.join(kernels)} | GroupQueryAttention |\n|{'---|' * (len(kernels) + 2)}")
    for before, queries in ((128, 1), (2048, 1), (2048, 4), (2048, 64)):
        for dtype in (DType.float32, DType.float16, DType.bfloat16, DType.int8):
            caches = [Cache(before, queries, dtype) for _ in range(layers)]
            works: dict[str, Callable[[], Any]] = {
                name: partial(_each, [partial(c.run, table) for c in caches]) for name, table in kernels.items()
            }
            if dtype in (DType.float32, DType.float16):
                session = _group_query_attention(dtype)
                works["GroupQueryAttention"] = partial(_each, [c.bound(session) for c in caches])
            times = _in_turns({name: partial(_seconds, work) for name, work in works.items()}, rounds)
            cells = [f"{statistics.median(t) * 1e3:.1f} (least {min(t) * 1e3:.1f})" for t in times.values()]
            cells += ["-"] * (len(kernels) + 1 - len(cells))
            print(f"| {before:,}, {queries}, {dtype.name} | {' | '.join(cells)} |", flush=True)


def _each(works: Sequence[Callable[[], Any]]) -> None:
    for work in works:
        work()


class Cache:
    """The keys and values of a layer, behind some tokens, and queries."""

    def __init__(self, before: int, queries: int, dtype: DType) -> None:
        self._rng, self._dtype = np.random.default_rng(0), dtype
        heads, groups, channels = (SHAPE[n] for n in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        self.keys, self.values = (self._random(1, groups, CONTEXT, channels) for _ in range(2))
        self.query = self._rng.standard_normal((1, heads, queries, channels), np.float32)
        self.positions = np.arange(before, before + queries)[None]
        scales = np.full((1, groups, CONTEXT), 0.05, np.float32) if dtype is DType.int8 else None
        self._options = (None, scales, scales, None, 0, 0.0)
        self._out = np.empty_like(self.query)

    def _random(self, *shape: int) -> np.ndarray:
        values = self._rng.standard_normal(shape, np.float32)
        if self._dtype is DType.bfloat16:
            return to_bfloat16(values)
        return (values * 20).astype(np.int8) if self._dtype is DType.int8 else values.astype(self._dtype.numpy)

    def run(self, table: KernelTable) -> None:
        kernel = table.find(OPERATOR, {DType.float32, DType.int64, self._dtype})
        assert kernel is not None
        kernel.function(self.query, self.keys, self.values, self.positions, *self._options, out=self._out)

    def bound(self, session: Any) -> Callable[[], Any]:
        """A run of a session that reads and writes the cache where it lies."""
        import onnxruntime

        rows = {name: x.swapaxes(1, 2).reshape(1, self.positions.size, -1) for name, x in (("query", self.query), *(
            (name, x[:, :, self.positions[0]]) for name, x in (("key", self.keys), ("value", self.values))
        ))}  # fmt: skip
        end = int(self.positions[0, -1])
        feeds = {
            **{name: np.ascontiguousarray(x, self._dtype.numpy) for name, x in rows.items()},
            "past_key": self.keys, "past_value": self.values,
            "last": np.array([end], np.int32), "total": np.array([end + 1], np.int32),
        }  # fmt: skip
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(x) for name, x in feeds.items()}
        out = onnxruntime.OrtValue.ortvalue_from_numpy(np.empty_like(feeds["query"]))
        binding = session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in (("out", out), ("new_key", values["past_key"]), ("new_value", values["past_value"])):
            binding.bind_ortvalue_output(name, value)
        return partial(session.run_with_iobinding, binding)


def _group_query_attention(dtype: DType) -> Any:
    """A session of the one operator."""
    import onnxruntime
    from onnx import TensorProto, helper

    floats = {DType.float32: TensorProto.FLOAT, DType.float16: TensorProto.FLOAT16}[dtype]
    inputs = {**dict.fromkeys(("query", "key", "value", "past_key", "past_value"), floats)}
    inputs |= dict.fromkeys(("last", "total"), TensorProto.INT32)
    outputs = dict.fromkeys(("out", "new_key", "new_value"), floats)
    node = helper.make_node(
        "GroupQueryAttention", [*inputs], [*outputs], domain="com.microsoft",
        num_heads=SHAPE["num_attention_heads"], kv_num_heads=SHAPE["num_key_value_heads"],
    )  # fmt: skip
    values = [
        [helper.make_tensor_value_info(name, kind, None) for name, kind in names.items()] for names in (inputs, outputs)
    ]
    versions = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "attention", *values), opset_imports=versions, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would slow down the other kernels
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def profile(path: Path) -> None:
    """Print the share of a token's time of each kind of step."""
    model = Model(path)
    for context in (128, 2048):
        talk = model.conversation()
        talk.feed([1 + i % 1000 for i in range(context)])
        talk.feed([7])
        with talk.context.profile() as watched:
            for _ in range(16):
                talk.feed([7])
        kinds: dict[str, int] = {}
        for timing in watched.timings:
            kind = "partitions of layers" if timing.what.startswith("partition") else timing.what
            kind = "the head" if timing.method == "head" else kind
            kinds[kind] = kinds.get(kind, 0) + timing.nanoseconds
        print(
            f"a token behind {context}, ms: " + ", ".join(f"{k} {v / 16e6:.2f}" for k, v in kinds.items()), flush=True
        )


if __name__ == "__main__":
    main()
