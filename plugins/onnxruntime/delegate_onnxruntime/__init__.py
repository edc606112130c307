"""Every execution provider of ONNX Runtime as a backend of delegate."""

import delegate.backends.onnx  # noqa: F401 - opts out of ONNX Runtime's usage data
