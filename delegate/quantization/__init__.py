"""Quantization for the backends that run integers: torchao's PT2E flow, driven by each backend's own table."""

from delegate.config.model import Quantization
from delegate.edge.node import float_node
from delegate.quantization import quiet  # noqa: F401 - before all that imports torchao
from delegate.quantization.calibration import Batch, read_calibration
from delegate.quantization.flow import Prepared, convert, prepare, quantize, quantize_methods
from delegate.quantization.quantizer import BackendQuantizer
from delegate.quantization.settings import OFF, keep_in_float, schemes

__all__ = [
    "OFF", "BackendQuantizer", "Batch", "Prepared", "Quantization", "convert", "float_node", "keep_in_float", "prepare",
    "quantize", "quantize_methods", "read_calibration", "schemes",
]  # fmt: skip
