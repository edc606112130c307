"""The request of an accuracy check, its bounds, and the precision of a program, which determines the default bound."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import ValidationError
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from delegate.config import AccuracyPolicy, Config
from delegate.config.source import sentences
from delegate.edge.exported import with_plain_tensors
from delegate.edge.node import arguments, base_name, draws, tensors
from delegate.errors import ConfigError
from delegate.report.rows import Accuracy

OnFailure = Literal["error", "warn", "move"]


@dataclass(frozen=True, slots=True)
class Verify:
    """An accuracy check of a program, given as `to_backend(verify=...)`; see docs/reference/accuracy.md.

    Example::

        check = delegate.Verify((torch.ones(1, 8),), sqnr_db=40)
        program = delegate.to_backend(exported, "xnnpack", verify=check)
        print(program.report.accuracy)

    Bounds that are None are as the section `verify` of the configuration has them.

    Args:
        inputs: a tuple of arguments, a dict of keyword arguments, or a list of these; for several methods a dict of
            these by method. None: the example inputs of the export.
        reference: the float reference of the model, in any form that `to_backend` accepts, e.g. the program that was
            quantized to the model. A model that is quantized here has its own float program as reference.
        sqnr_db: least ratio of the reference's power to the difference's power, in dB.
        max_error: greatest absolute difference.
        relative_error: greatest absolute difference, divided by the greatest size in the reference.
        top1: least share of rows whose greatest element is at the same place as in the reference, 0 to 1.
        on_failure: "error" raises AccuracyError. "warn" warns. "move" runs the nodes at fault on other backends or on
            kernels, and keeps the noisiest layers in float, until the bounds hold.
    """

    inputs: Any = None
    reference: Any = None
    sqnr_db: float | None = None
    max_error: float | None = None
    relative_error: float | None = None
    top1: float | None = None
    on_failure: OnFailure | None = None


_BOUNDS = ("sqnr_db", "max_error", "relative_error", "top1", "on_failure")


def with_bounds(config: Config, check: Verify) -> Config:
    """Return the configuration with the bounds of a request; raises ConfigError if these are invalid."""
    bounds = {name: value for name in _BOUNDS if (value := getattr(check, name)) is not None}
    if not bounds:
        return config
    configured = {} if config.verify is None else config.verify.model_dump()
    try:
        policy = AccuracyPolicy.model_validate(configured | bounds)
    except ValidationError as error:
        what = f"the bounds of Verify are invalid: {sentences(error, AccuracyPolicy)}"
        raise ConfigError(what, where="verify") from error
    return config.model_copy(update={"verify": policy})


@dataclass(frozen=True, slots=True)
class Bounds:
    """The error that a partition, or a method, may have; None means no bound.

    Args:
        sqnr_db: the least signal-to-quantization-noise ratio, in decibels.
        max_error: the greatest absolute difference.
        relative_error: the greatest absolute difference over the greatest absolute value in the reference.
        top1: the least share of rows whose greatest elements agree.
    """

    sqnr_db: float | None = None
    max_error: float | None = None
    relative_error: float | None = None
    top1: float | None = None

    @classmethod
    def of(cls, policy: AccuracyPolicy | None) -> Bounds:
        """Return the bounds of a configuration; no bounds if it has no `verify` section."""
        if policy is None:
            return cls()
        return cls(policy.sqnr_db, policy.max_error, policy.relative_error, policy.top1)

    def __bool__(self) -> bool:
        return any(b is not None for b in (self.sqnr_db, self.max_error, self.relative_error, self.top1))

    def __str__(self) -> str:
        texts = {
            "{:g} dB or more": self.sqnr_db,
            "a max error of {:g} or less": self.max_error,
            "a relative error of {:g} or less": self.relative_error,
            "top-1 of {:.4g}% or more": None if self.top1 is None else 100 * self.top1,
        }
        return ", ".join(text.format(bound) for text, bound in texts.items() if bound is not None)

    def excess(self, figures: Accuracy | None) -> float:
        """Return the noise over the noise that the bounds allow, as a ratio of powers; up to 1 the bounds hold.

        The ratios of independent causes of noise add up, and undefined figures miss every bound. Figures that were not
        measured meet every bound.
        """
        ratios = [] if figures is None else list(self._ratios(figures))
        return math.inf if any(map(math.isnan, ratios)) else max(ratios, default=0.0)

    def _ratios(self, figures: Accuracy) -> Iterator[float]:
        if self.sqnr_db is not None:
            yield _power((self.sqnr_db - figures.sqnr_db) / 10)
        if self.max_error is not None:
            yield _square(_ratio(figures.max_error, self.max_error))
        if self.relative_error is not None:
            yield _square(_ratio(figures.relative_error, self.relative_error))
        if self.top1 is not None and figures.top1 is not None:
            yield _ratio(1 - figures.top1, 1 - self.top1)


# The least SQNR in dB of a precision if no bound is configured. Backends may compute float32 in 16-bit floats.
DEFAULTS: Mapping[str, float] = {
    "float32": 40.0,
    "16-bit floats": 30.0,
    "16-bit integers": 40.0,
    "int8": 20.0,
    "4 bits": 10.0,
    "fewer than 4 bits": 3.0,
}


def _power(exponent: float) -> float:
    try:
        return float(10.0**exponent)
    except OverflowError:
        return math.inf


def _ratio(error: float, bound: float) -> float:
    if not error:
        return 0.0
    return error / bound if bound else math.inf


def _square(number: float) -> float:
    return number * number  # infinite where it is too large; ** would raise OverflowError


# The most bits of a precision in integers -> its name.
_INTEGERS = {3: "fewer than 4 bits", 4: "4 bits", 8: "int8", 16: "16-bit integers"}
_HALF = "16-bit floats"
_PRODUCTS = frozenset(
    f"aten.{name}"
    for name in (
        "addbmm", "addmm", "addmv", "baddbmm", "bmm", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
        "conv_transpose2d", "conv_transpose3d", "convolution", "dot", "einsum", "embedding", "linear", "matmul", "mm",
        "mv", "scaled_dot_product_attention",
    )
)  # fmt: skip


def precision_of(ep: ExportedProgram) -> str:
    """Return the least precision that a program computes in: a key of `DEFAULTS`.

    A program computes in integers if it quantizes or decodes values, or multiplies integers. It also does if it
    multiplies by weights that are computed from integer constants. torchao's `quantize_` and PT2E make such programs.
    """
    plain = with_plain_tensors(ep)
    graphs = [m.graph for m in plain.graph_module.modules() if isinstance(m, GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes]
    bits = min((*filter(None, map(_coded_bits, nodes)), *_weight_bits(plain.graph, _constants(plain))), default=None)
    for most, name in _INTEGERS.items():
        if bits is not None and bits <= most:
            return name
    floats = [t.dtype.itemsize for n in nodes for t in tensors(n) if t.is_floating_point()]
    return _HALF if floats and min(floats) <= 2 else "float32"


def is_quantized(precision: str) -> bool:
    """Return if a precision is one of integers."""
    return precision in _INTEGERS.values()


def _coded_bits(node: Node) -> int | None:
    """Return the bits of the integers that a node makes of floats, or decodes, or multiplies; None for another node."""
    if base_name(node) == "aten._int_mm":
        return 8
    if node.op != "call_function" or "quantize" not in str(node.target):
        return None
    named = arguments(node)
    ends = named.get("quant_min"), named.get("quant_max")
    if type(ends[0]) is int and type(ends[1]) is int:
        return (ends[1] - ends[0]).bit_length()
    values = (t for n in (node, *node.all_input_nodes[:1]) for t in tensors(n) if not t.is_floating_point())
    return min((8 * t.dtype.itemsize for t in values), default=8)


def _constants(ep: ExportedProgram) -> set[str]:
    """Return the placeholder names of parameters, buffers and constants."""
    signature = ep.graph_signature
    kinds = (signature.inputs_to_parameters, signature.inputs_to_buffers, signature.inputs_to_lifted_tensor_constants)
    return {name for kind in kinds for name in kind}


def _weight_bits(graph: Graph, constants: set[str]) -> Iterator[int]:
    """Yield the bits of the integers from which a product's weights are computed.

    Args:
        graph: the graph of a program.
        constants: the placeholder names of constants.
    """
    fixed = set[Node]()  # constants, and values that depend on constants only
    bits = dict[Node, int]()  # those of them that are integers, or computed from integers
    for node in graph.nodes:
        if node.op == "placeholder" and node.name in constants:
            fixed.add(node)
            integers = (t for t in tensors(node) if not (t.is_floating_point() or t.is_complex()))
            bits.update((node, 8 * t.dtype.itemsize) for t in integers if t.dtype is not torch.bool)
        elif node.op == "call_function":
            coded = [bits[source] for source in node.all_input_nodes if source in bits]
            if coded and base_name(node) in _PRODUCTS:
                yield min(coded)
            elif fixed.issuperset(node.all_input_nodes) and not draws(node):
                fixed.add(node)
                if coded:
                    bits[node] = _narrow_bits(node, min(coded))


def _narrow_bits(node: Node, bits: int) -> int:
    """Return the bits of a node's result on integers of `bits` bits, e.g. of those that a byte holds in 4 bits."""
    number = node.args[1] if len(node.args) > 1 else None
    if not isinstance(number, int):
        return bits
    match base_name(node).removeprefix("aten."):
        case "bitwise_and" | "__and__":
            return min(bits, number.bit_length())
        case "bitwise_right_shift" | "__rshift__":
            return max(bits - number, 1)
        case "remainder":
            return min(bits, (number - 1).bit_length())
    return bits
