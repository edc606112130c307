"""Surroundings of the tests: passes verified one by one, no backends of plugins/, a GPU that software plays."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("DELEGATE_VERIFY_PASSES", "1")
os.environ.setdefault("DELEGATE_CACHE", "off")  # but for its own tests, nothing is taken from an earlier run

# What stands in plugins/ has tests of its own, and must not change what these find.
os.environ.setdefault("DELEGATE_BLOCK_PLUGINS", "openvino,onnxruntime")

_DRIVER = Path(__file__).parents[1] / ".gpu-software/usr/lib/chromium/vk_swiftshader_icd.json"

if _DRIVER.exists() and "VK_DRIVER_FILES" not in os.environ:
    os.environ.update(ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER="1", VK_DRIVER_FILES=str(_DRIVER))
    os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")  # where libwayland is installed it complains of its absence
