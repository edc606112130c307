"""Shared parts of backends on ONNX Runtime: a region becomes an ONNX model, which a session on one provider runs."""
