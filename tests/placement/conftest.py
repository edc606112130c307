"""Measure without the pause between two measurements, in few rounds if requested, and with a shared quantization."""

from tests.support.placing import at_once, few_rounds, static

__all__ = ["at_once", "few_rounds", "static"]
