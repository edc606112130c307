"""The library as programs use it, and its operators in samples of torch's OpInfo database."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from delegate_kernels_extra.library import TABLE

import delegate
from delegate.errors import LoweringError
from delegate.kernels.portable import TABLE as PORTABLE
from delegate.plugins import Plugin
from delegate.testing import assert_same
from tests.support.functions import Function
from tests.support.opinfo import database, sweep

X = torch.rand(4, 3, generator=torch.Generator().manual_seed(0)) + 0.5
SOME = [
    "nn.functional.fractional_max_pool2d", "histogram", "igamma", "igammac", "special.airy_ai", "special.bessel_j0",
    "special.modified_bessel_k1", "special.shifted_chebyshev_polynomial_w", "special.hermite_polynomial_h",
    "polygamma", "special.zeta", "i0", "special.i1", "lgamma", "linalg.det", "linalg.lu",
]  # fmt: skip
KNOWN = ("aten.special_airy_ai.default",)  # float32 has few digits of the phase of a wave at large arguments


def test_the_entry_point_is_the_table() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    ((name, value),) = project["project"]["entry-points"]["delegate.kernels"].items()
    assert Plugin(name, "", "", value).load() is TABLE
    assert TABLE.library == name


def test_no_operator_is_in_the_portable_library_too() -> None:
    assert not {kernel.op for kernel in TABLE} & {kernel.op for kernel in PORTABLE}
    for kernel in TABLE:
        namespace, packet, overload = kernel.op.split(".")
        assert hasattr(getattr(getattr(torch.ops, namespace), packet), overload), kernel.op


def test_a_program_runs_on_its_kernels() -> None:
    module = Function(lambda x: torch.special.bessel_j0(x) + torch.igamma(x, x))
    exported = torch.export.export(module, (X,))
    assert_same(delegate.to_backend(exported, [], kernels=[TABLE])(X), module(X))
    with pytest.raises(LoweringError, match=r"aten\.special_bessel_j0\.default .*pip install \./plugins/kernels-extra"):
        delegate.to_backend(exported, [], kernels=["portable"])


@pytest.mark.parametrize("pick", [lambda found: found[0], lambda found: found[1][1], lambda found: found[1]])
def test_a_list_among_the_results(pick: Any) -> None:
    """`histogramdd` returns a tensor and a list of tensors."""
    module = Function(lambda x: pick(torch.histogramdd(x, [3, 4])))
    x = X[:, :2].contiguous()
    program = delegate.to_backend(torch.export.export(module, (x,)), [], kernels=[TABLE])
    assert_same(program(x), module(x))


@pytest.fixture(scope="module")
def entries() -> list[Any]:
    return database()


@pytest.mark.parametrize("name", SOME)
def test_some_entries(entries: Any, name: str) -> None:
    chosen = [entry for entry in entries if entry.name == name]
    rows = sweep(chosen, [torch.float32, torch.bfloat16, torch.int64, torch.uint8], count=1)
    assert rows.passed
    assert not {row: why for row, why in rows.failures().items() if not row.startswith(KNOWN)}
