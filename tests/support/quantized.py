"""Settings of quantization, assertions about quantized programs on XNNPACK, and the noise of quantization."""

from __future__ import annotations

from typing import Any

import torch

import delegate
from delegate.config import Quantization


def settings_of(backend: str, scheme: str | None = None, **rules: Any) -> Quantization:
    """Return the settings of a quantization for a backend."""
    return Quantization(backend=backend, scheme=scheme, **rules)


def floats_within(program: delegate.CompiledProgram) -> list[str]:
    """Return the report's reasons why operators between integers are in floats."""
    return [n for p in program.report.partitions for n in p.notes if "in floats" in n]


def require_whole(program: delegate.CompiledProgram) -> None:
    """Assert that XNNPACK runs a program in one partition."""
    assert len(program.report.partitions) == 1
    assert {n.backend for n in program.report.nodes} == {"xnnpack"}


def sqnr(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Return the signal-to-noise ratio in dB."""
    noise = (expected - got).pow(2).mean().clamp_min(1e-30)
    return float(10 * torch.log10(expected.pow(2).mean() / noise))
