"""Measure without the pause between two measurements, and with the quantization that tests share."""

from tests.support.placing import at_once, static

__all__ = ["at_once", "static"]
