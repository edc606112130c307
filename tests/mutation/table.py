"""The mutations: one wrong line each, and the tests that are expected to fail with it.

A row must change results or promises that users see. Rows that survive stay in the table until a test catches them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One change of product code.

    Args:
        source: module, relative to delegate/ or, of a plugin, to the root of the repository.
        old: text that occurs once in it.
        new: text in its place.
        breaks: effect of the change.
        wanted: test files, folders or tests that are to fail, relative to tests/ or, of a plugin, to the root.
    """

    source: str
    old: str
    new: str
    breaks: str
    wanted: tuple[str, ...]

    @property
    def file(self) -> str:
        """Path of the module from the root of the repository."""
        return _from_root("delegate", self.source)

    @property
    def tests(self) -> tuple[str, ...]:
        """Paths of the tests from the root of the repository."""
        return tuple(_from_root("tests", name) for name in self.wanted)

    def applied(self, text: str) -> str:
        """Return the module's text with the mutation; raise ValueError unless the old text occurs once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file}: {text.count(self.old)} occurrences of {self.old!r}")
        return text.replace(self.old, self.new)


def _from_root(folder: str, path: str) -> str:
    return path if path.startswith("plugins/") else f"{folder}/{path}"


_ELEMENTWISE = ("kernels/test_elementwise.py",)
_INDEXING = ("kernels/test_indexing.py",)
_POOLING = ("kernels/test_pooling.py",)
_ONNX = "plugins/onnxruntime/delegate_onnxruntime/onnx/aot"
_ON_DEVICES = "plugins/onnxruntime/tests/devices"
_DSP = _ON_DEVICES + "/test_rows.py::test_every_row_runs_on_the_library_and_is_right[dsp-{}]"

_ROWS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    # -- portable kernels
    ("kernels/binary.py", "np.minimum(x, level(high, out), out=out)", "np.maximum(x, level(high, out), out=out)",
     "clamp: upper bound", _ELEMENTWISE),
    ("kernels/binary.py", "np.multiply(difference, 1 - weight, out=out)", "np.multiply(difference, weight, out=out)",
     "lerp: weight from the other end", _ELEMENTWISE),
    ("kernels/reduction.py", "axis=() if dim == []", "axis=None if dim == []", "any: axes of an empty list",
     ("kernels/test_reductions.py",)),
    ("kernels/activation.py", "np.copyto(out, x, where=linear)", "np.copyto(out, x, where=~linear)",
     "softplus: side of the threshold", _ELEMENTWISE),
    ("kernels/activation.py", "np.clip(x, -lambd, lambd", "np.clip(x, 0, lambd", "softshrink: lower bound",
     _ELEMENTWISE),
    ("kernels/quantization.py", "np.minimum(values, level(_number(high), values), out=values)", "pass",
     "quantize: dropped clamp", ("kernels/test_quantization.py",)),
    ("kernels/copies.py", "* step + start, casting", "* step, casting", "arange: start ignored",
     ("kernels/test_copies.py",)),
    ("kernels/copies.py", "np.tril_indices(rows, offset, columns)", "np.tril_indices(rows, -offset, columns)", "tril_indices: sign of the offset",
     ("kernels/test_copies.py",)),

        ("kernels/attention.py", "math.sqrt(query.shape[-1]) if", "math.sqrt(query.shape[-2]) if", "attention: axis of scale",
     ("kernels/test_attention.py",)),
    ("kernels/pooling.py", "-(-(j + 1) * size // count)", "(j + 1) * size // count",
     "adaptive pool: end of a window rounded down", _POOLING),
    ("kernels/pooling.py", "np.maximum(start, 0), np.minimum(end, size[axis])", "np.maximum(start, 0), end",
     "average pool: divisor at the far edge", _POOLING),
    ("kernels/windows.py", "images, (-4, -2), (-2, -1)", "images, (-2, -4), (-2, -1)", "pixel_shuffle: axes",
     ("kernels/test_convolution.py",)),
    ("kernels/convolution.py", "slice(p, p + n) for p, n in zip(padding", "slice(0, n) for p, n in zip(padding",
     "transposed convolution: padding at the front",
     ("kernels/test_convolution.py",)),
    ("kernels/normalization.py", "shift = -mean * scale if bias", "shift = mean * scale if bias", "batch norm: sign",
     ("kernels/test_normalization.py",)),
    ("kernels/windows.py", "2 * (size - 1) - index", "2 * size - 1 - index", "reflection: edge repeated",
     ("kernels/test_resize.py",)),
    ("kernels/indexing.py", "np.full(out.shape, int(include_self), np.int64)", "np.zeros(out.shape, np.int64)",
     "scatter mean: count without the place itself", _INDEXING),
    ("kernels/sorting.py", "place_of(line, k - 1)", "place_of(line, k)", "kthvalue: off by one",
     ("kernels/test_sorting.py",)),
    ("kernels/distance.py", "np.power(out, 1 / p, out=out)", "np.power(out, p, out=out)", "cdist: root",
     ("kernels/test_attention.py",)),
    ("kernels/indexing.py", 'return "right" if right else "left"', 'return "left" if right else "right"',
     "bucketize: side", _INDEXING),
    ("kernels/statistics.py", "middle = (x.size - 1) // 2", "middle = x.size // 2", "median: the upper one",
     ("kernels/test_sorting.py",)),
    ("kernels/interpolation.py", "((position + 1) * size - 1) * half", "((position + 1) * size) * half",
     "grid_sample: half a pixel off", ("kernels/test_resize.py",)),
    ("kernels/binary.py", '"xor": np.logical_xor', '"xor": np.logical_or', "logical_xor: both true", _ELEMENTWISE),
    ("backends/xnnpack/aot/lowerings/reduction.py", "count / (count - correction)", "count / (count + correction)",
     "variance: sign of the correction", ("backends/xnnpack/test_values.py",)),
    ("backends/xnnpack/aot/lowerings/pooling.py", "and low >= 0", "and low >= -1", "max pool: zeros win over negatives",
     ("backends/xnnpack/test_images.py",)),
    ("backends/xnnpack/aot/lowerings/pooling.py", "windows.kernel[d], size + padding)", "windows.kernel[d], size)",
     "average pool: divisor at the edge", ("backends/xnnpack/test_images.py",)),
    ("backends/xnnpack/aot/lowerings/activations.py", "shift = -builder.array(mean)", "shift = builder.array(mean)",
     "batch norm: sign", ("backends/xnnpack/test_values.py",)),
    ("backends/xnnpack/aot/lowerings/activations.py", '"ELU", below), alpha * scale)', '"ELU", below), alpha)',
     "selu: scale below 0", ("backends/xnnpack/test_values.py",)),
    ("backends/xnnpack/aot/lowerings/indexing.py", "np.cumsum([0, *sizes])", "np.cumsum([1, *sizes])", "split: starts",
     ("backends/xnnpack/test_movements.py",)),
    ("backends/xnnpack/aot/lowerings/elementwise.py", "builder.operand(y), float(alpha))",
     "builder.operand(y), 1.0)", "add: alpha ignored", ("backends/xnnpack/test_values.py",)),
    ("backends/xnnpack/aot/lowerings/elementwise.py", "if exponent % 2 else square", "if exponent % 3 else square",
     "pow: parity", ("backends/xnnpack/test_values.py",)),
    ("backends/xnnpack/aot/lowerings/gather_scatter.py", "halfPixelCenters=not aligned", "halfPixelCenters=False",
     "bilinear: half a pixel off", ("backends/xnnpack/test_images.py",)),
    ("backends/xnnpack/aot/lowerings/layers.py", "kernels=layer.kernels.transpose(0, 2, 3, 1)",
     "kernels=layer.kernels.transpose(0, 3, 2, 1)", "convolution: height and width of the kernel",
     ("backends/xnnpack/test_images.py",)),
    ("backends/xnnpack/aot/layout.py", "order.index(d) for d in target)", "target.index(d) for d in order)",
     "transpose: the inverse permutation", ("backends/xnnpack/test_layout.py",)),
    ("backends/xnnpack/runtime/weights.py", "(bits >> np.uint32(16))", "(bits >> np.uint32(15))", "stored bfloat16: shift",
     ("backends/xnnpack/test_weights.py",)),
    # -- ONNX
    ("plugins/vendor-kit/delegate_vendor_kit/sums.py", "squares, count / (count - correction)", "squares, 1.0", "variance: correction ignored",
     (_DSP.format("reductions"),)),
    (f"{_ONNX}/translations/reductions.py", "largest=int(largest)", "largest=1", "topk: always the largest",
     (_DSP.format("sorting"),)),
    (f"{_ONNX}/translations/activations.py", "op.Mul(tail, scalar(1 / beta, x))",
     "op.Mul(tail, scalar(beta, x))", "softplus: beta", (_DSP.format("activations"),)),
    (f"{_ONNX}/translations/products.py", ".tril().bool()", ".triu().bool()", "attention: causal mask",
     (f"{_ON_DEVICES}/test_attention.py",)),
    (f"{_ONNX}/number_checks.py", "_MOST = 2**31 - 1", "_MOST = 2**60", "bias that exceeds 32 bits is taken",
     ("plugins/onnxruntime/tests/test_biases.py",)),
    # -- emitter
    ("emit/guards.py", "ast.Gt: sympy.Gt", "ast.Gt: sympy.Ge", "guard: comparison",
     ("e2e/test_guards.py",)),
    ("emit/symbols.py", "Expr(Op.CONST, -offset)", "Expr(Op.CONST, offset)", "solved size: sign of the offset",
     ("runtime/test_run.py",)),
    ("emit/qdq_fusion.py", 'args["axis"] == 0', 'args["axis"] != 0', "table of embeddings: axis",
     ("emit/test_qdq_fusion.py",)),
    ("emit/tables.py", "if value.numel():", "if not value.numel():", "shared weights stored twice",
     ("emit/test_shared.py",)),
    ("emit/graph.py", '("aten.div.Tensor_mode", ("floor",))', '("aten.div.Tensor_mode", ("trunc",))',
     "number from data: rounding", ("runtime/test_run.py",)),
    # -- runtime
    ("runtime/inputs.py", "symbol.minimum <= number and", "symbol.minimum < number and", "least size refused",
     ("runtime/test_run.py",)),
    ("runtime/context.py", "if not is_zeros(content):", "if is_zeros(content):", "states do not start as saved",
     ("runtime/test_states.py",)),
    ("runtime/inputs.py", "any(end > start for", "any(end < start for", "written inputs that share memory are taken",
     ("runtime/test_written_inputs.py",)),
    ("runtime/arrays.py", "kernel.library == PORTABLE and not kernel.random", "kernel.library == PORTABLE",
     "random numbers computed once", ("runtime/test_computed.py",)),
    ("memory/storage.py", "(count or 0) * v.dtype.itemsize", "(count or 0)", "arena: elements for bytes",
     ("memory/test_size_bounds.py",)),
    ("runtime/inputs.py", "code.value = _UNSIGNED", "code.value = 0", "bfloat16 by DLPack: dtype",
     ("runtime/test_bfloat16.py",)),
    # -- programs
    ("program/lifetimes.py", "self.start <= other.end and other.start <= self.end",
     "self.start < other.end and other.start < self.end", "blocks that meet at one step overlap",
     ("memory/test_planner.py",)),
    ("memory/planner.py", "changes[block.end + 1] -=", "changes[block.end] -=", "live memory: off by one",
     ("memory/test_planner.py",)),
    ("program/expr.py", "return max(a[0], b[0]), max(a[1], b[1])", "return max(a[0], b[0]), min(a[1], b[1])",
     "bound of a maximum", ("program/test_expr.py",)),
    ("memory/planner.py", "end = max(end, stop)", "end = stop", "gap within a longer block",
     ("memory/test_planner.py",)),
    ("program/expr.py", "Op.CEIL: math.ceil,\n    Op.TRUNC: math.trunc,\n    Op.ROUND: round,\n    Op.SQRT",
     "Op.CEIL: math.floor,\n    Op.TRUNC: math.trunc,\n    Op.ROUND: round,\n    Op.SQRT", "ceil of a size",
     ("program/test_expr.py",)),
    ("program/segments.py", "places[digest, segment.nbytes] = align(end)", "places[digest, segment.nbytes] = end",
     "segments not aligned", ("program/test_file.py",)),
    # -- partitioner
    ("costs/quantities.py", "return 2 * count(node)", "return count(node)", "work of a product",
     ("costs/test_work.py",)),
    ("partitioner/extraction.py", "enumerate(boundary.outputs)", "enumerate(reversed(boundary.outputs))",
     "results of a partition swapped", ("partitioner/test_extraction.py",)),

        ("partitioner/assign.py", "nbytes(node) < nbytes(source) and not any(", "nbytes(node) > nbytes(source) and not any(",
     "views at the border: comparison", ("partitioner/test_boundary_views.py",)),
    # -- quantization
    ("quantization/observers.py", "middle - 1 - sizes", "middle + sizes", "histogram: sign",
     ("quantization/test_ranges.py",)),

        ("quantization/observers.py", "_OUTLIER_FACTOR * max(-low, high)", "_OUTLIER_FACTOR * max(low, high)", "outliers: sign of the low end",
     ("quantization/test_ranges.py",)),
    ("quantization/calibration.py", "bool((leaf != first).any())", "True", "constant data taken for calibration",
     ("quantization/test_bad_input.py",)),
    # -- accuracy
    ("accuracy/figures.py", "self.noise += float(off.square().sum())", "self.noise += float(off.sum())", "SQNR: power",
     ("accuracy/test_figures.py",)),
    ("accuracy/figures.py", "sqnr_db=-_worst(-o.sqnr_db", "sqnr_db=_worst(o.sqnr_db", "the best output is reported",
     ("accuracy/test_figures.py",)),
    ("accuracy/bounds.py", "yield _square(_ratio(figures.max_error, self.max_error))",
     "yield _ratio(figures.max_error, self.max_error)", "excess: ratio of powers", ("accuracy/test_figures.py",)),
)  # fmt: skip

MUTATIONS = tuple(Mutation(*row) for row in _ROWS)
