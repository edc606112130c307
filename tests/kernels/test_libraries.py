"""Kernel libraries by entry point: their order, what they override, their conflicts."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from delegate.errors import KernelError
from delegate.kernels.table import KernelTable
from delegate.plugins import PluginState
from delegate.program.dtypes import DType
from delegate.registry import Registry
from tests.support.plugins import Site, installed_without
from tests.support.processes import AHEAD_OF_TIME, run

GROUP = "delegate.kernels"
PLUGINS = ("delegate-kernels-extra", "delegate-numba")


@pytest.fixture(autouse=True)
def without_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the packages of plugins/ that have kernels."""
    monkeypatch.setattr("delegate.registry.find_plugins", lambda: installed_without(PLUGINS))


def library(site: Site, name: str, op: str, dtypes: str = "float32") -> None:
    site.module(
        f"{name}_kernels",
        f"""
        import numpy as np
        from delegate.kernels.table import KernelTable
        from delegate.program.dtypes import DType
        TABLE = KernelTable("{name}")

        @TABLE.kernel("{op}", dtypes={{DType.{dtypes}}})
        def twice(x, *, out):
            np.multiply(x, 2, out=out)
        """,
    )
    site.distribution(f"{name}-dist", "1.0", {name: f"{name}_kernels:TABLE"}, GROUP)


def test_order_and_overrides(site: Site) -> None:
    library(site, "zeta", "aten.relu.default")
    library(site, "alpha", "alpha.twice.default")
    registry = Registry()
    assert [t.library for t in registry.kernels.tables()] == ["alpha", "zeta", "portable"]
    overrides = {lib.name: lib.overrides for lib in registry.kernels.libraries}
    assert overrides == {"alpha": (), "zeta": ("aten.relu.default",), "portable": (), "aten": ()}
    kernel = registry.kernels.tables()[0].find("alpha.twice.default", {DType.float32})
    assert kernel is not None
    out = np.empty(2, np.float32)
    kernel.function(np.array([1, 2], np.float32), out=out)
    assert out.tolist() == [2, 4]


def test_two_claims_of_one_kernel(site: Site) -> None:
    library(site, "alpha", "aten.relu.default")
    library(site, "zeta", "aten.relu.default")
    with pytest.raises(KernelError) as caught:
        Registry().kernels.tables()
    for part in ("aten.relu.default", "float32", "alpha-dist 1.0", "zeta-dist 1.0", "DELEGATE_BLOCK_PLUGINS=zeta"):
        assert part in str(caught.value)


def test_other_dtypes_are_no_conflict(site: Site) -> None:
    library(site, "alpha", "aten.relu.default")
    library(site, "zeta", "aten.relu.default", "float64")
    assert len(Registry().kernels.tables()) == 3


@pytest.mark.parametrize("value", ["alpha", "ALPHA", "*"])
def test_blocked(site: Site, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    library(site, "alpha", "aten.relu.default")
    monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", value)
    registry = Registry()
    assert [t.library for t in registry.kernels.tables()] == ["portable"]
    assert registry.kernels.libraries[0].state is PluginState.BLOCKED


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("1 / 0", "fails to import: ZeroDivisionError"),
        ("TABLE = {}", "provides dict at bad_kernels:TABLE, not a KernelTable"),
        (
            "from delegate.kernels.table import KernelTable\nTABLE = KernelTable('good')",
            "has the name 'good', but its entry point is 'bad': both must be the same",
        ),
    ],
)
def test_broken_is_one_warning(site: Site, source: str, sentence: str) -> None:
    site.module("bad_kernels", source)
    site.distribution("bad-dist", "1.0", {"bad": "bad_kernels:TABLE"}, GROUP)
    registry = Registry()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        registry.kernels.tables()
        tables = registry.kernels.tables()
    assert [t.library for t in tables] == ["portable"]
    assert len(caught) == 1
    assert "kernel library 'bad' of bad-dist 1.0 is broken" in str(caught[0].message)
    assert sentence in str(caught[0].message)


def test_two_owners_of_one_name(site: Site) -> None:
    for owner in ("first-dist", "second-dist"):
        site.distribution(owner, "1.0", {"twice": "twice_kernels:TABLE"}, GROUP)
    with pytest.warns(RuntimeWarning, match="first-dist 1.0 and second-dist 1.0"):
        assert [t.library for t in Registry().kernels.tables()] == ["portable"]


def test_preference(site: Site) -> None:
    library(site, "alpha", "aten.relu.default")
    library(site, "zeta", "aten.relu.default")
    registry = Registry()
    own = KernelTable("own")
    for wanted, names in [
        (["zeta", "alpha"], ["zeta", "alpha", "portable"]),  # the order decides, so that two claims are no conflict
        (["portable", own], ["portable", "own"]),
        (own, ["own", "portable"]),
        ("alpha", ["alpha", "portable"]),
        ([], ["portable"]),
    ]:
        assert [t.library for t in registry.kernels.tables(wanted)] == names


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (["portabel"], "no kernel library is named 'portabel': did you mean 'portable'?"),
        (["portable", "portable"], "kernel library 'portable' is listed twice"),
        ([KernelTable("own"), KernelTable("own")], "kernel library 'own' is listed twice"),
        ([7], "a int is not a kernel library"),
        (7, "a int is not a kernel library"),
        (["bad"], "kernel library 'bad' of bad-dist 1.0 is broken: it fails to import: ZeroDivisionError"),
    ],
)
def test_what_is_named_wrong(site: Site, wanted: list[Any], sentence: str) -> None:
    site.module("bad_kernels", "1 / 0")
    site.distribution("bad-dist", "1.0", {"bad": "bad_kernels:TABLE"}, GROUP)
    with pytest.raises(KernelError) as caught:
        Registry().kernels.tables(wanted)
    assert sentence in str(caught.value)


NAMED_ALONE = """
from delegate.registry import Registry
registry = Registry()
libraries = [lib for lib in registry.kernels.libraries if lib.name not in ('kernels-extra', 'numba')]
print([t.library for t in registry.kernels.tables()], [str(lib.state) for lib in libraries])
print("torch" in sys.modules)
print([t.library for t in registry.kernels.tables(["aten"])], "torch" in sys.modules)
"""

WITHOUT_TORCH = """
from delegate.errors import KernelError
from delegate.registry import Registry
registry = Registry()
print([str(lib.state) for lib in registry.kernels.libraries if lib.name not in ('kernels-extra', 'numba')])
try:
    registry.kernels.tables(["aten"])
except KernelError as error:
    print(error)
"""


@pytest.mark.extended
def test_aten_is_imported_where_it_is_named_alone() -> None:
    done = run(NAMED_ALONE)
    assert done.stdout == "['portable'] ['ok', 'ok']\nFalse\n['aten', 'portable'] True\n", done.stderr


def test_aten_without_torch() -> None:
    done = run(WITHOUT_TORCH, absent=AHEAD_OF_TIME)
    assert done.stdout == (
        "['ok', 'unavailable']\nkernel library 'aten' needs torch, which is not installed: pip install "
        "torch, or leave it out of the kernel libraries\n"
    ), done.stderr
