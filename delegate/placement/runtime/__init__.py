"""Measurement of programs and bundles. Needs no torch."""
