"""Qualcomm's Hexagon DSP (HTP), by the QNN provider of ONNX Runtime; an emulator of it runs on x86."""
