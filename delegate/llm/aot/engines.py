"""The fastest backend for each method of a language model, measured on the first layers of the model."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from torch import nn
from torch.export import ExportedProgram
from torch.fx import Node

from delegate.compile import to_backend
from delegate.edge.program import EdgeProgram
from delegate.errors import DelegateError
from delegate.llm.aot.hugging_face import transformers
from delegate.measured import cost_text
from delegate.partitioner.partitioner import Partitioner
from delegate.partitioner.support_query import Check, computing
from delegate.runtime.loaded import LoadedProgram
from delegate.text_table import Table
from delegate.verdict import Reason, Verdict, no

LAYERS, WORDS = 2, 1 << 14  # of the model that is measured: enough that weights come from memory, not from a cache
ROUNDS, CALLS = 8, 4  # a round calls a method a few times on each backend
RIVAL = 2.0  # a backend that takes more than this many times the least time has no further round
PAUSE = 0.05  # seconds before the turn of a backend, because threads of the one before wait actively for a while
CLEAR = 0.9  # another backend than the preferred one must take less than this share of its time
GAIN = 0.8  # another backend must take less than this share of the time if weights are then stored twice


@dataclass(frozen=True)
class MethodEngine:
    """The measured backends of one method.

    Args:
        method: its name.
        backend: the backend that was chosen.
        seconds: backend -> seconds per call on the shortened model, the preferred backend first.
        why: why the backend is not the fastest one; else empty.
    """

    method: str
    backend: str
    seconds: Mapping[str, float]
    why: str = ""


class InMethods(Partitioner):
    """A partitioner that uses a backend in some methods only.

    Args:
        backend: its name.
        methods: names of these methods.
    """

    def __init__(self, backend: str, methods: Sequence[str]) -> None:
        super().__init__(backend)
        self._methods = frozenset(methods)

    def partition(self, program: EdgeProgram, check: Check) -> Mapping[Node, Verdict]:
        nodes = computing(n for n in program.graph.nodes if n.op not in ("placeholder", "output"))
        if program.name in self._methods:
            return {node: check(node) for node in nodes}
        return dict.fromkeys(nodes, no(Reason.SLOWER, f"another backend was faster in method {program.name}"))


def shortened(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """Return a model of the first layers and the first tokens of the vocabulary; it shares the weights."""
    small = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    base, config = small.base_model, small.config
    base.layers = base.layers[:LAYERS]
    config.num_hidden_layers, config.vocab_size = len(base.layers), min(config.vocab_size, WORDS)
    embedding, head = small.get_input_embeddings(), small.get_output_embeddings()
    is_tied = head.weight is embedding.weight
    embedding.weight = nn.Parameter(embedding.weight[:WORDS], requires_grad=False)
    head.weight = embedding.weight if is_tied else nn.Parameter(head.weight[:WORDS], requires_grad=False)
    if getattr(head, "bias", None) is not None:
        head.bias = nn.Parameter(head.bias[:WORDS], requires_grad=False)
    return small


def choose_engines(
    methods: Mapping[str, ExportedProgram],
    sharing: Sequence[Sequence[str]],
    backends: Sequence[str],
    progress: Callable[[str], None],
) -> list[MethodEngine]:
    """Measure the methods of a shortened model on each backend; return the choice for each method.

    Args:
        methods: the methods of the shortened model that compute.
        sharing: groups of methods that share their weights. Weights are stored once for each backend of a group, so
            the first method's backend is used in the others too, unless another one is much faster there.
        backends: names of the candidates. One that fails is left out.
        progress: called with short progress texts.

    Raises:
        DelegateError: all candidates failed; the error is that of the last one.
    """
    programs: dict[str, LoadedProgram] = {}
    for place, backend in enumerate(backends):
        progress(f"compiling {LAYERS} layers for {backend}")
        try:
            programs[backend] = to_backend(dict(methods), backend).loaded
        except DelegateError:
            if place == len(backends) - 1 and not programs:
                raise
    engines = []
    for group in sharing:
        first = ""
        for method in (m for m in group if m in methods):
            progress(f"measuring {method}")
            engines.append(_choose(method, _seconds(programs, method, methods[method]), first))
            first = first or engines[-1].backend
    return engines


def _seconds(programs: Mapping[str, LoadedProgram], method: str, exported: ExportedProgram) -> dict[str, float]:
    """Return the median time of a call of a method in each program; they take turns."""
    arguments, _ = exported.example_inputs
    inputs = [x.numpy() for x in arguments]
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        least = min((median(own) for own in times.values() if own), default=math.inf)
        for name in [n for n, own in times.items() if not own or median(own) < RIVAL * least]:
            time.sleep(PAUSE)
            try:
                times[name] += _times(partial(programs[name].method(method).run, inputs))
            except DelegateError:
                del times[name]
                if not times:
                    raise
    return {name: median(own) for name, own in times.items()}


def _times(call: Callable[[], object]) -> Iterator[float]:
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        yield time.perf_counter() - start


def _choose(method: str, seconds: Mapping[str, float], first: str) -> MethodEngine:
    """Choose the fastest backend, unless the preferred one, or that of the shared weights, is nearly as fast."""
    best = min(seconds, key=seconds.__getitem__)
    if first in seconds and best != first and seconds[best] > GAIN * seconds[first]:
        why = f"{best} would store the weights a second time, for {1 - seconds[best] / seconds[first]:.0%} of the time"
        return MethodEngine(method, first, seconds, why)
    preferred = next(iter(seconds))
    if not first and best != preferred and seconds[best] > CLEAR * seconds[preferred]:
        why = f"{best} takes {1 - seconds[best] / seconds[preferred]:.0%} less, which may be noise"
        return MethodEngine(method, preferred, seconds, why)
    return MethodEngine(method, best, seconds)


def partitioners(engines: Sequence[MethodEngine]) -> list[Partitioner]:
    """Return the partitioners that use the chosen backend in each method."""
    names = dict.fromkeys(engine.backend for engine in engines)
    return [InMethods(name, [e.method for e in engines if e.backend == name]) for name in names]


def engine_table(engines: Sequence[MethodEngine]) -> Table:
    """Return the choices as a table for people."""
    rows = tuple(
        (e.method, e.backend, ", ".join(f"{n} {cost_text(s, 'latency')}" for n, s in sorted(e.seconds.items())), e.why)
        for e in engines
    )
    return Table(("method", "backend", f"measured on {LAYERS} layers", "note"), rows)
