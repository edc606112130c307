"""`delegate ops`: one operator in full, patterns, JSON, custom operators, without torch; and the support matrix."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from delegate_devtools.ops import Catalogue, dtype_text

from delegate.backends.xnnpack.aot.lowerings import TABLE
from delegate.program.dtypes import DType
from delegate.registry import Registry, default_registry
from tests.support.availability import require
from tests.support.commands import call
from tests.support.plugins import Site, site
from tests.support.processes import run

__all__ = ["site"]


@pytest.fixture(autouse=True)
def without_other_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", "kernels-extra,numba,openvino,onnxruntime")
    default_registry.cache_clear()
    yield
    monkeypatch.undo()
    default_registry.cache_clear()


def invoke(*args: str) -> str:
    return call("ops", *args)[0]


def one(name: str) -> dict:
    (found,) = json.loads(invoke(name, "--json"))
    return found


def test_a_compound_operator():
    text = invoke("aten.hardswish")
    for words in (
        "aten.hardswish.default\n",
        "native, not core ATen",
        "aten.clamp.default",  # of what it decomposes to
        "out= aten.hardswish.out",
        "in place aten.hardswish_.default",
        "portable:      floats",
        "xnnpack:       supports it if:",
        "float32, float16 or bfloat16, of rank 6 at most",
    ):
        assert words in text


def test_a_view():
    facts = one("aten.permute.default")
    assert facts["torch"]["view"]
    assert facts["torch"]["core"]
    assert facts["kernels"][0] == {
        "library": "portable",
        "kind": "view",
        "dtypes": [t.name for t in DType],
        "contiguous": False,
    }
    assert facts["decomposition"] == []
    assert facts["backends"]["xnnpack"]


def test_a_leaf_that_no_backend_takes():
    facts = one("aten.cummax.default")
    assert (facts["torch"]["compound"], facts["backends"]) == (False, {})
    assert [k["library"] for k in facts["kernels"]] == ["portable", "aten"]


def test_what_compound_operators_become():
    catalogue = Catalogue(Registry())
    for name, part in {
        "aten.linear.default": "aten.mm.default",
        "aten.layer_norm.default": "aten.native_layer_norm.default",
        "aten.conv2d.default": "aten.convolution.default",
        "aten.scaled_dot_product_attention.default": "aten._softmax.default",
    }.items():
        assert part in catalogue.facts(name, expand=True).decomposition, name


@pytest.mark.parametrize("pattern", ["aten.conv*", "aten::conv*", "conv*"])
def test_a_pattern(pattern):
    text = invoke(pattern)
    assert text.startswith("operator")
    assert "aten.convolution.default" in text
    assert "aten.add.Tensor" not in text
    assert "portable has kernels for" in text.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "operators"),
    {
        "softmax": ["aten.softmax.int", "aten._softmax.default"],
        "layer_norm": ["aten.layer_norm.default", "aten.native_layer_norm.default"],
        "aten.softmax": ["aten.softmax.int"],
        "relu": ["aten.relu.default"],
    }.items(),
)
def test_a_plain_name_has_the_core_operator_too(name, operators):
    assert [facts["name"] for facts in json.loads(invoke(name, "--json"))] == operators


def test_an_unknown_operator():
    assert "no operator is named 'aten.permut': did you mean 'aten.permute'?" in call("ops", "aten.permut", code=1)[1]


def test_names_match_without_case():
    assert invoke("AtEn.ReLU") == invoke("aten.relu")
    assert "aten.linear.default" in invoke("-b", "XNNPACK")


CUSTOM = """
import torch
from torch.library import custom_op

@custom_op("delegate_ops_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2
"""

KERNELS = """
import numpy as np
from delegate import DType, KernelTable
TABLE = KernelTable("twice")

@TABLE.kernel("delegate_ops_test::twice", dtypes={DType.float32}, contiguous=True)
def twice(x, *, out):
    np.multiply(x, 2, out=out)
"""


def test_a_custom_operator(site: Site):
    site.module("twice_op", CUSTOM)
    site.module("twice_kernels", KERNELS)
    site.distribution("twice-dist", "1.0", {"twice": "twice_kernels:TABLE"}, "delegate.kernels")
    text = invoke("delegate_ops_test::twice", "--import", "twice_op")
    assert "custom, not core ATen" in text
    assert "twice:         floats except float64, faster for row-major arrays" in text
    assert "aten:          all" in text


def test_without_torch():
    code = "from delegate.cli.app import app; app()"
    done = run(code, "ops", "aten.add.Tensor", "--json", absent=["torch"])
    assert done.returncode == 0, done.stderr
    (facts,) = json.loads(done.stdout)
    assert facts["torch"] is None
    assert facts["backends"] == {}
    assert [k["library"] for k in facts["kernels"]] == ["portable"]


def test_the_support_matrix_has_a_row_per_operator():
    for backend in ("cuda", "dsp", "webgpu"):
        require(backend)
    text = invoke("--markdown")
    assert "| operator | kind | portable | cuda | dsp | webgpu | xnnpack |" in text
    assert "| `aten.permute.default` | core, view | all |" in text
    assert "\n1. " in text  # a condition, to which cells refer by its number


def test_every_lowering_says_its_conditions():
    backend = Catalogue(Registry()).backends["xnnpack"]
    assert [row.op for row in TABLE if not backend.conditions(row.op)] == []


@pytest.mark.parametrize(
    ("dtypes", "text"),
    [
        (DType, "all"),
        ({DType.float32}, "float32"),
        ({DType.float16, DType.float32, DType.float64}, "floats except bfloat16"),
        ({DType.bool, DType.int64}, "int64, bool"),
        ({DType.complex64}, "complex64"),
        ((), ""),
    ],
)
def test_dtypes_in_few_words(dtypes, text):
    assert dtype_text(dtypes) == text
