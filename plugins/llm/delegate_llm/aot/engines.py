"""The fastest backend for each method of a language model, measured on the first layers of the model."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from torch import nn
from torch.export import ExportedProgram
from torch.fx import Node

from delegate.common.text_table import Table
from delegate.compile import to_backend
from delegate.edge.program import EdgeProgram
from delegate.errors import DelegateError, ExportError
from delegate.partitioner.partitioner import Partitioner
from delegate.partitioner.support_query import Check, computing
from delegate.report.measured import cost_text
from delegate.runtime.loaded import LoadedProgram
from delegate.verdict import Reason, Verdict, no
from delegate_llm.aot.hugging_face import transformers

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


def shorten(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """Return a model of the first layers and the first tokens of the vocabulary; it shares the weights."""
    small = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    base, config = small.base_model, small.config
    base.layers = base.layers[:LAYERS]
    config.num_hidden_layers, config.vocab_size = len(base.layers), min(config.vocab_size, WORDS)
    embedding, head = small.get_input_embeddings(), small.get_output_embeddings()
    is_tied = head.weight is embedding.weight
    embedding.weight = nn.Parameter(embedding.weight[:WORDS], requires_grad=False)
    embedding.padding_idx = None  # it is for gradients, and may be one of the other tokens
    head.weight = embedding.weight if is_tied else nn.Parameter(head.weight[:WORDS], requires_grad=False)
    if getattr(head, "bias", None) is not None:
        head.bias = nn.Parameter(head.bias[:WORDS], requires_grad=False)
    return small


def choose_engines(
    methods: Mapping[str, ExportedProgram],
    sharing: Sequence[Sequence[Sequence[str]]],
    backends: Sequence[str],
    progress: Callable[[str], None],
) -> list[MethodEngine]:
    """Measure the methods of a shortened model on each backend; return the choice for each method.

    Args:
        methods: the methods of the shortened model that compute.
        sharing: groups of methods that share their weights; a group has sets of methods that must have one backend, for
            equal tokens, and each backend of a group stores the weights. So the other sets have the backend of the
            first one, unless another backend is much faster there.
        backends: names of the candidates, of which one that fails is left out.
        progress: called with short progress texts.

    Raises:
        DelegateError: all candidates failed; the error comes from the last one. Or none runs all methods of a set.
    """
    programs: dict[str, LoadedProgram] = {}
    for place, backend in enumerate(backends):
        progress(f"compiling {LAYERS} layers for {backend}")
        try:
            programs[backend] = to_backend(dict(methods), backend).loaded
        except DelegateError:
            if place == len(backends) - 1 and not programs:
                raise
    engines: list[MethodEngine] = []
    for group in sharing:
        first = ""
        for names in ([name for name in equal if name in methods] for equal in group):
            measured = {}
            for method in names:
                progress(f"measuring {method}")
                measured[method] = _seconds(programs, method, methods[method])
            if measured:
                engines += _choose(measured, first)
                first = first or engines[-1].backend
    return engines


def _seconds(programs: Mapping[str, LoadedProgram], method: str, exported: ExportedProgram) -> dict[str, float]:
    """Return the median time of a method's call in each program; they take turns."""
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


def _choose(measured: Mapping[str, Mapping[str, float]], first: str) -> list[MethodEngine]:
    """Choose one backend for methods that must have equal tokens.

    Args:
        measured: method -> backend -> seconds per call, the preferred backend first.
        first: the backend that has the weights already; empty if none has them.

    Raises:
        ExportError: no backend runs all methods.
    """
    costs = _costs(measured)
    best, preferred = min(costs, key=costs.__getitem__), next(iter(costs))
    chosen, why = best, ""
    if first in costs and best != first and costs[best] > GAIN * costs[first]:
        chosen = first
        why = f"{best} would store the weights a second time, for {1 - costs[best] / costs[first]:.0%} of the time"
    elif not first and best != preferred and costs[best] > CLEAR * costs[preferred]:
        chosen, why = preferred, f"{best} takes {1 - costs[best] / costs[preferred]:.0%} less, which may be noise"
    return [MethodEngine(m, chosen, own, why or _reason(chosen, own, measured)) for m, own in measured.items()]


def _costs(measured: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the time of each backend that runs all methods, relative to the fastest one of each method and added."""
    common = [name for name in next(iter(measured.values())) if all(name in own for own in measured.values())]
    if not common:
        remedy = "pass --backend, so that other nodes run on portable kernels"
        raise ExportError(f"no backend runs all of {', '.join(measured)}", remedy=remedy)
    return {name: sum(own[name] / min(own.values()) for own in measured.values()) for name in common}


def _reason(chosen: str, own: Mapping[str, float], methods: Collection[str]) -> str:
    """Return the reason why a method does not have its fastest backend; empty if it has."""
    best = min(own, key=own.__getitem__)
    if best == chosen:
        return ""
    less = 1 - own[best] / own[chosen]
    return f"{best} takes {less:.0%} less, but one backend for {', '.join(methods)} keeps tokens equal"


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
