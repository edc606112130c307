"""Lowering of regions for a provider. Needs torch."""
