"""The backend `onnxruntime`: any execution provider of ONNX Runtime, by its name."""
