"""Distributions with plugins for tests: written to a directory of their own and put on `sys.path`, as pip would."""

from __future__ import annotations

import contextlib
import importlib
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

from delegate.backend.info import BackendInfo
from delegate.plugins import Installed, find_plugins
from delegate.registry import Registry, default_registry

INFO = """
from delegate.backend.info import Availability, BackendInfo

def probe():
    return Availability({ok}, {reason!r}, {{"{name}-library": "1.0"}}, ("CPU",))

INFO = BackendInfo("{name}", "A backend for tests", "{module}:Aot", "{module}:Runtime", probe, "pip install {name}-sdk",
                   api_version={api_version})
"""

# The runtime part of a backend that adds with NumPy.
RUNTIME = """
import numpy as np
from delegate.runtime.backend import BackendRuntime, Delegate

class Sum(Delegate):
    def execute(self, inputs, outputs):
        np.add(*inputs, out=outputs[0])

class Runtime(BackendRuntime):
    def init(self, blob, compile_specs):
        return Sum()
"""

# Both parts of such a backend.
HALVES = (
    RUNTIME
    + """
def __getattr__(name):
    if name != "Aot":
        raise AttributeError(name)
    from pydantic import Field
    from delegate.backend.aot import Backend, Options, PreprocessResult
    from delegate.verdict import YES, Reason, no

    class SumOptions(Options):
        threads: int = Field(1, ge=1, le=64)
        precision: str = "float32"

    class Aot(Backend):
        name = "{name}"
        Options = SumOptions

        def check(self, node):
            return YES if str(node.target) == "aten.add.Tensor" else no(Reason.OPERATOR, "it only adds")

        def preprocess(self, region):
            return PreprocessResult(b"sum")

    return Aot
"""
)


class Site:
    """A directory on `sys.path` that distributions are installed into."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def module(self, name: str, source: str) -> None:
        """Write a module."""
        (self.root / f"{name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()

    def distribution(
        self,
        name: str,
        version: str,
        entries: Mapping[str, str],
        group: str = "delegate.backends",
        suffix: str = "dist-info",
    ) -> None:
        """Write the metadata of a distribution with these entry points."""
        directory = self.root / f"{name.replace('-', '_')}-{version}.{suffix}"
        directory.mkdir()
        metadata = "PKG-INFO" if suffix == "egg-info" else "METADATA"
        (directory / metadata).write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
        (directory / "entry_points.txt").write_text("\n".join(lines) + "\n")
        importlib.invalidate_caches()

    def backend(
        self,
        name: str,
        *,
        owner: str = "",
        version: str = "1.0",
        ok: bool = True,
        reason: str = "",
        api_version: tuple[int, int] = (1, 0),
    ) -> None:
        """Write and install a backend that works, or one whose probe says why it does not."""
        module = f"{name}_plugin"
        halves = f"{name}_halves"
        self.module(module, INFO.format(name=name, module=halves, ok=ok, reason=reason, api_version=api_version))
        self.module(halves, HALVES.replace("{name}", name))
        self.distribution(owner or f"{name}-dist", version, {name: f"{module}:INFO"})


def installed_without(owners: Collection[str]) -> Installed:
    """Return the installed plugins except for those of some distributions."""
    return {group: [p for p in plugins if p.owner not in owners] for group, plugins in find_plugins().items()}


def registered(*infos: BackendInfo) -> Iterator[Registry]:
    """Yield a new default registry that has more backends, for a fixture; forget it afterwards."""
    default_registry.cache_clear()
    for info in infos:
        default_registry().register(info)
    yield default_registry()
    default_registry.cache_clear()


@contextlib.contextmanager
def installed(root: Path) -> Iterator[Site]:
    """Put a directory on the path, and forget afterwards what was imported from it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root))
        default_registry.cache_clear()
        before = set(sys.modules)
        yield Site(root)
        default_registry.cache_clear()
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(root)):
                del sys.modules[name]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """An empty site directory on the path."""
    root = tmp_path / "site"
    root.mkdir()
    with installed(root) as site:
        yield site
