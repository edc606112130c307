"""Runs programs on a provider. Needs no torch."""
