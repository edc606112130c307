"""The surroundings of the project's own tests."""

from __future__ import annotations

import os

os.environ.setdefault("DELEGATE_BLOCK_PLUGINS", "openvino,onnxruntime")

import tests.conftest  # noqa: F401
