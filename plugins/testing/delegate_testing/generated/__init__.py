"""Operators with generated attributes, shapes and sizes, and generated programs of several: they need Hypothesis."""
