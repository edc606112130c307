"""Lowering of regions to XNNPACK's model format. Needs torch."""
