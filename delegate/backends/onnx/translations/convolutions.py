"""Convolutions, plain and transposed, over one to three dimensions."""

from __future__ import annotations

from delegate.backends.lowering import every
from delegate.backends.onnx.translations.row import floating, row, same_dtypes

ROWS = (row("aten.convolution.default", ("Conv", "ConvTranspose"), every(floating, same_dtypes)),)
