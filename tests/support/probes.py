"""What the libraries alone do where a backend computes an operator otherwise: a guard that finds torch's result may go.

A probe runs one vendor operator in the library, without a backend, and returns the results beside those of torch. There
is one for each row of the tables of deviations whose handling is `REWRITTEN`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from delegate.backend.deviations import Deviation, Handling
from tests.support.lowering import relative_error

_TOLERANCE = 1e-5  # relative; the guarded differences are far larger


@dataclass(frozen=True, slots=True)
class Probe:
    """A vendor operator beside torch's.

    Args:
        backend: whose table has the row.
        operator: one of the row's.
        domain: of the row.
        theirs: runs the library alone on `x`.
        torch: the same in torch.
        x: the input.
    """

    backend: str
    operator: str
    domain: str
    theirs: Callable[[np.ndarray[Any, Any]], Any]
    torch: Callable[[Tensor], Tensor]
    x: Tensor

    def differs(self) -> bool:
        """Return true if the library's results still differ from torch's."""
        right = self.torch(self.x)
        result = torch.as_tensor(np.asarray(self.theirs(self.x.numpy()))).reshape(right.shape)
        return relative_error(result, right, each=True) > _TOLERANCE


def _in_onnx(op: str, constants: Sequence[Any] = (), **attributes: Any) -> Callable[[np.ndarray[Any, Any]], Any]:
    """Return a function that runs an ONNX operator in ONNX Runtime."""

    def run(x: np.ndarray[Any, Any]) -> Any:
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper

        held = [numpy_helper.from_array(np.asarray(c), f"c{i}") for i, c in enumerate(constants) if c is not None]
        names = [f"c{i}" if c is not None else "" for i, c in enumerate(constants)]
        node = helper.make_node(op, ["x", *names], ["y"], **attributes)
        info = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
        graph = helper.make_graph(
            [node], "probe", [info], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], held
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(None, {"x": x})[0]

    return run


def _in_openvino(build: Callable[[Any, Any], Any], dtype: str = "f32") -> Callable[[np.ndarray[Any, Any]], Any]:
    """Return a function that runs an operator of OpenVINO: of its module of operators, and the input."""

    def run(x: np.ndarray[Any, Any]) -> Any:
        import openvino
        from openvino import opset13 as opset

        source = opset.parameter(list(x.shape), np.float32)
        given = opset.convert(source, dtype) if dtype != "f32" else source
        model = openvino.Model([opset.convert(build(opset, given), "f32")], [source])
        hint = {"INFERENCE_PRECISION_HINT": dtype}
        return openvino.compile_model(model, "CPU", hint)([x])[0]

    return run


def _normalize(x: Tensor) -> Tensor:
    return F.layer_norm(x.double(), x.shape[-1:]).float()


_PIXELS = torch.arange(26.0).reshape(1, 1, 1, 26)
_FAR = torch.linspace(-1, 1, 1 << 20).reshape(1, -1) + 4096

PROBES = (
    Probe("onnxruntime", "aten.upsample_nearest2d", "known sizes such as 26 to 22, whose ratio is rounded",
          _in_onnx("Resize", (None, None, np.array([1, 1, 1, 22])), coordinate_transformation_mode="asymmetric",
                   mode="nearest", nearest_mode="floor"), lambda x: F.interpolate(x, (1, 22)), _PIXELS),
    Probe("onnxruntime", "aten.sigmoid", "inputs below -5", _in_onnx("Sigmoid"), torch.sigmoid, torch.tensor([-20.0])),
    Probe("onnxruntime", "aten.elu", "float32 from -0.004 to 0", _in_onnx("Elu"), F.elu, torch.tensor([-1e-8])),
    Probe("openvino", "aten.upsample_nearest2d", "known sizes such as 26 to 22, whose ratio is rounded",
          _in_openvino(lambda op, x: op.interpolate(x, np.array([1, 22]), "nearest", "sizes", axes=np.array([2, 3]),
                                                    coordinate_transformation_mode="asymmetric",
                                                    nearest_mode="floor")),
          lambda x: F.interpolate(x, (1, 22)), _PIXELS),
    Probe("openvino", "aten.elu", "float32 near 0 or in the tails", _in_openvino(lambda op, x: op.elu(x, 1.0)), F.elu,
          torch.tensor([-1e-8])),
    Probe("openvino", "aten.sum", "many elements", _in_openvino(lambda op, x: op.reduce_sum(x, np.array([0]), False)),
          lambda x: x.double().sum(0).float(), torch.ones(1 << 25)),
    Probe("openvino", "aten.layer_norm", "more than 8,192 elements of known sizes",
          _in_openvino(lambda op, x: op.mvn(x, np.array([1]), True, 1e-5, "inside_sqrt")), _normalize, _FAR),
    Probe("openvino", "aten.cumsum", "bfloat16", _in_openvino(lambda op, x: op.cum_sum(x, np.int64(0)), "bf16"),
          lambda x: x.bfloat16().cumsum(0).float(), torch.ones(1024)),
)  # fmt: skip


def needless(backend: str, rows: Sequence[Deviation]) -> list[Deviation]:
    """Return the rewritten rows of a backend whose difference its library no longer shows."""
    return [row for row, probe in _probe(backend, rows).items() if not probe.differs()]


def unprobed(backend: str, rows: Sequence[Deviation]) -> list[Deviation]:
    """Return the rewritten rows of a backend that no probe belongs to."""
    probed = _probe(backend, rows)
    return [row for row in rows if row.handling is Handling.REWRITTEN and row not in probed]


def _probe(backend: str, rows: Sequence[Deviation]) -> dict[Deviation, Probe]:
    return {
        row: probe
        for probe in PROBES
        for row in rows
        if row.handling is Handling.REWRITTEN
        if (probe.backend, probe.domain) == (backend, row.domain) and probe.operator in row.operators
    }
