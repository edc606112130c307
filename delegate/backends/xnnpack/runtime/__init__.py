"""Checks and runs XNNPACK models, through LiteRT. Needs no torch."""
