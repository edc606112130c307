"""Measurement on other machines for delegate: bundles that a machine measures, and nodes of a Ray cluster."""
