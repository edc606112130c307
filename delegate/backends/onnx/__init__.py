"""Shared parts of backends on ONNX Runtime: a region becomes an ONNX model, which a session on one provider runs."""

from delegate.usage_data import opt_out

opt_out(variables={"ORT_DISABLE_TELEMETRY": "1"})
