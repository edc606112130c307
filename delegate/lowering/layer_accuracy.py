"""The report's rows of quantized layers: the error that each adds, and the total along the depth."""

from __future__ import annotations

from collections.abc import Iterator

from delegate.accuracy.bounds import is_quantized
from delegate.accuracy.verification import MeasuredAccuracy, Verification
from delegate.errors import AccuracyError
from delegate.lowering.layer_noise import FloatRun, layer_errors
from delegate.report import LayerAccuracy


def layer_accuracies(verification: Verification, measured: MeasuredAccuracy) -> Iterator[LayerAccuracy]:
    """Yield the error of each layer of the quantized methods that have a float reference, on the first sample.

    Methods that torch cannot run node by node, and methods whose results cannot be compared, have no rows.
    """
    for name, calls in verification.samples.items():
        is_compared = name in verification.floats and measured.methods[name].figures is not None
        if not (is_compared and calls and is_quantized(verification.precisions[name])):
            continue
        try:
            run = FloatRun.of(verification.floats[name], calls[0])
            errors = layer_errors(run, verification.exported[name], frozenset())
        except AccuracyError:
            continue
        for error in errors:
            yield LayerAccuracy(name, error.node, error.place, error.added.sqnr_db, error.total.sqnr_db)
