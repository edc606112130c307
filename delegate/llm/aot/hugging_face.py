"""transformers, imported. It imports torchvision where that is installed, which not every build of torch can load.

Models of text need none: where it cannot be loaded it counts as absent.
"""

import sys

from delegate.quantization import quiet  # noqa: F401 - transformers imports torchao too

try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):
    sys.modules["torchvision"] = None  # type: ignore[assignment]

import transformers

__all__ = ["transformers"]
