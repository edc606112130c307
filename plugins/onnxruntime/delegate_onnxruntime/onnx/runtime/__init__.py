"""ONNX Runtime sessions. Needs no torch."""
