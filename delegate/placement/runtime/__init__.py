"""Measurement of programs. Needs no torch."""
