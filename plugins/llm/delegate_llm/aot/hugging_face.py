"""The package transformers, imported without its messages and without a torchvision that does not load.

transformers imports torchvision if it is installed, which fails if that is built for another torch. Language models do
not need it, so transformers then counts it as absent. Other code in the process still sees it as it is.
"""

import sys

from delegate.quantization.quiet import silence

try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):
    sys.modules["torchvision"] = None  # type: ignore[assignment]

try:
    import transformers
    from transformers.utils.import_utils import is_torchvision_available

    is_torchvision_available()  # transformers keeps the answer
finally:
    if sys.modules.get("torchvision", sys) is None:
        del sys.modules["torchvision"]

with silence():
    transformers.PreTrainedModel  # noqa: B018 - transformers imports its models, and more of torchao, at their first use

__all__ = ["transformers"]
