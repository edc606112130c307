"""Import torchao without its messages about GPU libraries that do not load: nothing here uses these libraries."""

from __future__ import annotations

from contextlib import AbstractContextManager

from delegate.common.user_warnings import limit_logs


def silence() -> AbstractContextManager[None]:
    """Limit the loggers that such imports use to errors."""
    return limit_logs("torchao", "torch.utils._pytree")  # the second warns torchao of deprecations in torch


with silence():
    import torchao.quantization.pt2e.quantize_pt2e  # noqa: F401
