"""Decode and prefill of a language model beside llama.cpp, in one run: engines take turns, ratios are medians.

The model has Qwen3-0.6B's shape and random weights; `--layers` takes fewer of its layers. llama.cpp runs in an
environment of its own (`--llama PYTHON`, with llama-cpp-python and gguf), on the same weights in Q4_0. Both have 2
threads.

python -m benchmarks.llm [--layers N] [--llama PYTHON] [--rounds N] [--tokens N] [--folder DIR] [--profile]
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines import THREADS
from benchmarks.quantized import cpu
from examples.llm.batch import Batch
from examples.llm.model import Model
from tests.zoo import libraries

SHAPE = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096,
    "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}  # fmt: skip
CONTEXT, CHUNK, TALKS = 2560, 128, 4
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "int4": {"weights": "int4"},
    "int4-prefill8": {"weights": "int4", "prefill_weights": "int8"},
    "int4-cache8": {"weights": "int4", "cache": "int8"},
    "int8": {"weights": "int8"},
    "batch": {"weights": "int4", "conversations": TALKS},
}
PROBE = list(range(100, 132))  # tokens whose logits are compared


class Ours:
    """A program of `examples.llm`, with a conversation per length of context, so that no turn has to fill one."""

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
        return np.asarray(self.model.conversation().feed(tokens))


class Peer:
    """llama.cpp in a process of its own."""

    def __init__(self, python: str, folder: Path) -> None:
        command = [python, str(Path(__file__).parent / "llama_worker.py"), str(folder), str(CONTEXT), str(THREADS)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.load = self._ask()

    def decode(self, context: int, count: int) -> float:
        return self._ask(decode=[context, count]) / count

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


def export(folder: Path, layers: int, variants: Mapping[str, Mapping[str, Any]], weights: bool) -> np.ndarray:
    """Write a file per variant, where it is not there yet, and the weights for a peer; gives the logits of eager."""
    with libraries():
        import torch

        from examples.llm.decoder import Decoder
        from examples.llm.export import Options, export
        from examples.llm.source import read

        (folder / "config.json").write_text(json.dumps({**SHAPE, "num_hidden_layers": layers}))
        source = read(folder / "config.json")
        if weights:
            (folder / "weights").mkdir(exist_ok=True)
            for name, value in source.model.state_dict().items():
                np.save(folder / "weights" / f"{name}.npy", value.numpy())
        for name, options in variants.items():
            if not (folder / f"{name}.dlg").exists():
                start = time.perf_counter()
                export(source, folder / f"{name}.dlg", Options(context=CONTEXT, chunk=CHUNK, **options))
                print(f"{name}: exported in {time.perf_counter() - start:.0f} s", flush=True)
        with torch.no_grad():
            where = torch.arange(len(PROBE))[None]
            decoder = Decoder(source.model, len(PROBE), 1, "float32")
            return decoder(torch.tensor([PROBE]), where, torch.tensor([0]))[0].numpy()


def sqnr(expected: np.ndarray, got: np.ndarray) -> float:
    """Signal to noise in dB."""
    return float(10 * np.log10((expected**2).mean() / ((expected - got) ** 2).mean()))


def batched(path: Path, rounds: int) -> tuple[float, float]:
    """Tokens a second of one conversation, and of as many as the program holds, in turns."""
    batch = Batch(Model(path))
    for talk in batch.conversations:
        talk.feed(list(range(1, 129)))
    found: list[tuple[float, float]] = []
    for _ in range(rounds):
        one = _seconds(lambda: [batch.conversations[0].feed([7]) for _ in range(4)]) / 4
        together = _seconds(lambda: [batch.next(dict.fromkeys(range(TALKS), 7)) for _ in range(4)]) / 4
        found.append((1 / one, TALKS / together))
    return statistics.median(a for a, _ in found), statistics.median(b for _, b in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=8, help="that each engine decodes in its turn")
    parser.add_argument("--variants", nargs="*", default=[*VARIANTS], choices=VARIANTS)
    parser.add_argument("--llama", help="the Python of an environment with llama-cpp-python and gguf")
    parser.add_argument("--folder", type=Path, help="where files are kept; else they are made anew")
    parser.add_argument("--profile", action="store_true", help="where a token's time goes, instead of the table")
    given = parser.parse_args()
    print(f"{cpu()}, {THREADS} threads, {given.layers} layers\n")
    variants = {name: VARIANTS[name] for name in given.variants}
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        exact = export(folder, given.layers, variants, bool(given.llama))
        if given.profile:
            profile(folder / f"{given.variants[0]}.dlg")
            return
        engines: dict[str, Any] = {name: Ours(folder / f"{name}.dlg") for name in variants if name != "batch"}
        if given.llama:
            engines["llama.cpp Q4_0"] = Peer(given.llama, folder)
        measure(engines, given.rounds, given.tokens)
        print("\n| engine | load, s | SQNR of the logits to float32 eager, dB |\n|---|---|---|")
        for name, engine in engines.items():
            print(f"| {name} | {engine.load:.2f} | {sqnr(exact, engine.logits(PROBE)):.1f} |")
        if "batch" in variants:
            one, four = batched(folder / "batch.dlg", given.rounds)
            print(f"\n{TALKS} talks in one call: {four:.1f} tokens a second, one: {one:.1f}; ratio {four / one:.2f}")


def measure(engines: Mapping[str, Any], rounds: int, tokens: int) -> None:
    """Print a row per task: tokens a second of each engine, and ours over the last one's where that is a peer."""
    tasks: dict[str, Callable[[Any], float]] = {
        "decode at 128": lambda e: e.decode(128, tokens),
        "decode at 2,048": lambda e: e.decode(2048, tokens),
        "prefill of 512": lambda e: e.prefill(512),
    }
    peer = next((name for name, engine in engines.items() if isinstance(engine, Peer)), None)
    print(
        f"| tokens a second (over {peer or 'none'}) | {' | '.join(engines)} |\n|{'---|' * (len(engines) + 1)}",
        flush=True,
    )
    for task, work in tasks.items():
        times: dict[str, list[float]] = {name: [] for name in engines}
        for engine in engines.values():
            work(engine)
        for _ in range(rounds):
            for name, engine in engines.items():
                times[name].append(work(engine))
        cells = []
        for name, own in times.items():
            over = [p / t for p, t in zip(times[peer], own, strict=True)] if peer else []
            ratio = f" ({statistics.median(over):.2f})" if peer not in (None, name) else ""
            cells.append(f"{1 / statistics.median(own):.1f}{ratio}")
        print(f"| {task} | {' | '.join(cells)} |", flush=True)


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
        decode = [t for t in watched.timings if t.method == "decode"]
        partitions = [t for t in decode if t.what.startswith("partition")]
        for timing in decode:
            kind = "partitions of layers" if timing in partitions else timing.what
            kind = "the head" if partitions and timing is partitions[0] else kind
            kinds[kind] = kinds.get(kind, 0) + timing.nanoseconds
        print(
            f"a token behind {context}, ms: " + ", ".join(f"{k} {v / 16e6:.2f}" for k, v in kinds.items()), flush=True
        )


if __name__ == "__main__":
    main()
