"""Every core ATen operator has a portable kernel, except those listed here with a reason."""

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines the operators of quantized_decomposed

import delegate.edge.conversations  # noqa: F401 - registers operators of ours
from delegate.edge.decompose import core_decompositions
from delegate.kernels.portable import TABLE
from delegate.kernels.prims import COPIED
from delegate.program.dtypes import DType
from tests.kernels.core import WITHOUT_KERNEL, core_operators

# Lowering makes the former itself; the latter are operators of packages that need not be imported here.
OTHERS = ("assertion", "joined", "torchvision", "transformers")
INTEGERS_ONLY = {f"aten.bitwise_{n}" for n in ("and", "or", "xor", "not")}


@pytest.fixture(scope="module")
def core():
    return sorted(core_operators())


def test_every_core_operator_has_a_kernel(core):
    assert len(core) > 180
    assert [op for op in core if op not in TABLE and op not in WITHOUT_KERNEL] == []


def test_the_exceptions_are_true(core):
    assert set(WITHOUT_KERNEL) <= set(core)
    assert [op for op in WITHOUT_KERNEL if op in TABLE] == []


def test_compound_operators_have_kernels_only_if_these_are_faster_whole():
    """Other compound operators are decomposed before a program reaches the kernels, also if a backend rejects them."""
    compound = {str(op) for op in core_decompositions()} - {*core_operators()}
    kept = {"aten.pixel_shuffle.default", "aten.pixel_unshuffle.default"}  # backends preserve them; slow in parts
    assert {k.op for k in TABLE if k.op in compound and not k.whole} - kept - {f"aten.{a}" for a in COPIED} == set()


@pytest.mark.parametrize("dtype", [DType.float32, DType.float16, DType.bfloat16], ids=str)
def test_every_core_kernel_takes_floats(core, dtype):
    """Accept floats as the only dtype, or with the integers or bools of the operator."""
    besides = [(), (DType.int64,), (DType.bool,), (DType.complex64,)]
    without = [
        op
        for op in core
        if op in TABLE and not any(TABLE.find(op, (dtype, *m), allocates=a) for m in besides for a in (False, True))
        and op.rpartition(".")[0] not in INTEGERS_ONLY
    ]  # fmt: skip
    assert without == []


def test_operators_of_the_table_exist():
    """Check that torch knows every operator of the portable kernels.

    aten.cholesky is one of torch 2.13, in programs that were exported with it.
    """
    for kernel in TABLE:
        namespace, packet, overload = kernel.op.split(".")
        if namespace not in OTHERS and packet != "cholesky":
            assert hasattr(getattr(getattr(torch.ops, namespace), packet), overload), kernel.op
