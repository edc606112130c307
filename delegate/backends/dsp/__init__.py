"""Qualcomm's Hexagon DSP (HTP), by the QNN provider of ONNX Runtime; an emulator of it runs on x86."""

import delegate.backends.onnx  # noqa: F401 - opts out of ONNX Runtime's usage data
