"""Measurement on other machines for delegate, by bundles of programs."""
