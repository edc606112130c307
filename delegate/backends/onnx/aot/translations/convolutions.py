"""Convolutions, plain and transposed, over one to three dimensions."""

from __future__ import annotations

from torch.fx import Node

from delegate.backends.lowering import every
from delegate.backends.onnx.aot.translations.row import floating, row, same_dtypes
from delegate.edge.node import arguments
from delegate.verdict import YES, Reason, Verdict, no


def _padded_within_a_step(node: Node) -> Verdict:
    """In a transposed convolution, output_padding is less than stride."""
    args = arguments(node)
    if not args["transposed"] or all(p < s for p, s in zip(args["output_padding"], args["stride"], strict=False)):
        return YES
    what = f"transposed with output_padding={args['output_padding']}, stride={args['stride']}"
    return no(Reason.ATTRIBUTE, f"{what}, which ONNX Runtime does not run")


ROWS = (
    row("aten.convolution.default", ("Conv", "ConvTranspose"), every(floating, same_dtypes, _padded_within_a_step)),
)
