"""Lowering of regions for Qualcomm's DSP. Needs torch."""
