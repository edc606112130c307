"""Every execution provider of ONNX Runtime as a backend of delegate."""
