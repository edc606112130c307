"""The surroundings of the project's own tests, but for this plugin, which those leave out."""

from __future__ import annotations

import os

os.environ.setdefault("DELEGATE_BLOCK_PLUGINS", "openvino,onnxruntime")

import tests.conftest  # noqa: F401
from tests.support.placing import at_once
from tests.support.plugins import site

__all__ = ["at_once", "site"]
