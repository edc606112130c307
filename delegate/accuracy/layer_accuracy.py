"""The report's rows of quantized layers: the error that each adds, and the total along the depth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from torch.export import ExportedProgram

from delegate.accuracy.bounds import is_quantized
from delegate.accuracy.layer_noise import FloatRun, layer_errors
from delegate.accuracy.samples import Sample
from delegate.accuracy.verification import MeasuredAccuracy, Verification
from delegate.errors import AccuracyError
from delegate.report.rows import LayerAccuracy


def layer_accuracies(verification: Verification, measured: MeasuredAccuracy) -> Iterator[LayerAccuracy]:
    """Yield the error of each layer of the quantized methods that have a float reference, on the first sample.

    Methods that torch cannot run node by node, and methods whose results cannot be compared, have no rows.
    """
    for name, calls in verification.samples.items():
        is_compared = name in verification.floats and measured.methods[name].figures is not None
        if not (is_compared and calls and is_quantized(verification.precisions[name])):
            continue
        with suppress(AccuracyError):
            yield from layers_of(name, verification.floats[name], verification.exported[name], calls[0])


def layers_of(
    method: str, floats: ExportedProgram, quantized: ExportedProgram, sample: Sample
) -> tuple[LayerAccuracy, ...]:
    """Return the error of each layer of a quantized method in a call; raises AccuracyError if torch cannot run it."""
    errors = layer_errors(FloatRun.of(floats, sample), quantized, frozenset())
    rows = ((error.node, error.place, error.added.sqnr_db, error.total.sqnr_db) for error in errors)
    return tuple(LayerAccuracy(method, *row) for row in rows)
