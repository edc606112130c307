"""Runs programs on Qualcomm's DSP, through ONNX Runtime. Needs no torch."""
