"""The lowerings of the XNNPACK backend, by operator family. Importing this package fills `TABLE`."""

from importlib import import_module
from pkgutil import iter_modules

from delegate.backends.xnnpack.aot.lowerings.table import TABLE

__all__ = ["TABLE"]

for module in iter_modules(__path__, f"{__name__}."):
    import_module(module.name)
