"""The package timm, also beside a torchvision that was built for another torch.

timm imports torchvision, which registers rules for its C++ operators. If the operators do not load, that fails. The
networks of timm do not use them, so their rules are skipped.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch

_register_fake = torch.library.register_fake


def _skip_missing(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Register the rule of an operator, unless it is an operator of torchvision that did not load."""
    namespace, _, name = str(operator).partition("::")
    if namespace == "torchvision" and not hasattr(torch.ops.torchvision, name):
        return lambda rule: rule
    return _register_fake(operator, *args, **kwargs)


with mock.patch.object(torch.library, "register_fake", _skip_missing):
    import timm

__all__ = ["timm"]
