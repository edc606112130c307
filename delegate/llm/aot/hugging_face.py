"""The package transformers, imported without its messages and without a torchvision that does not load.

transformers imports torchvision if it is installed, which fails if that is built for another torch. Language models do
not need it, so it then counts as absent.
"""

import sys

from delegate.quantization.quiet import silence

try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):
    sys.modules["torchvision"] = None  # type: ignore[assignment]

import transformers

with silence():
    transformers.PreTrainedModel  # noqa: B018 - transformers imports its models, and more of torchao, at their first use

__all__ = ["transformers"]
