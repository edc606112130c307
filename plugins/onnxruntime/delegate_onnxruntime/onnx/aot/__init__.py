"""Translation of regions to ONNX. Needs torch."""
