"""bfloat16 at run time: arrays of ml_dtypes, DLPack, bits as views; integers are refused."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch

import delegate
from delegate.errors import InputError
from tests.support.functions import NamedFunction

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
WANTED = (X * 2 + 1).float().numpy()


def _program(dynamic: bool = False):
    dims = ({0: torch.export.Dim.AUTO},) if dynamic else None
    return delegate.to_backend(
        torch.export.export(NamedFunction(lambda x: x * 2 + 1).eval(), (X,), dynamic_shapes=dims), []
    )


def _values(bits):
    return bits.view(ml_dtypes.bfloat16).astype(np.float32)


class _Exporter:
    """A tensor of another library, by DLPack alone."""

    def __dlpack__(self, **_):
        return X.__dlpack__()

    def __dlpack_device__(self):
        return X.__dlpack_device__()


TAKEN = {
    "ml_dtypes": X.float().numpy().astype(ml_dtypes.bfloat16),
    "bits": X.float().numpy().astype(ml_dtypes.bfloat16).view(np.uint16),
    "a transposed view": X.t().contiguous().float().numpy().astype(ml_dtypes.bfloat16).T,
    "torch by DLPack": X,
    "DLPack": _Exporter(),
    "lists of numbers": X.float().tolist(),
}


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("dynamic", [False, True])
def test_taken(name, dynamic):
    np.testing.assert_array_equal(_values(_program(dynamic).loaded(TAKEN[name])), WANTED)


@pytest.mark.parametrize("dynamic", [False, True])
def test_integers_are_refused(dynamic):
    program = _program(dynamic)
    with pytest.raises(InputError, match=r"apparently of integers.*ml_dtypes\.bfloat16"):
        program.loaded(X.float().numpy().astype(np.uint16))
    with pytest.raises(InputError, match="uint16, but the program takes bfloat16"):
        program(X.to(torch.uint16))
    with pytest.raises(InputError, match="uint16, but the program takes bfloat16"):
        program.loaded(X.to(torch.uint16))
    with pytest.raises(InputError, match="float32, but the program takes bfloat16"):
        program.loaded(X.float().numpy())


def test_bytes_in_the_other_order_are_refused():
    """They were taken for the bits of other numbers."""
    swapped = TAKEN["ml_dtypes"].astype(TAKEN["ml_dtypes"].dtype.newbyteorder())
    np.testing.assert_array_equal(swapped.astype(np.float32), X.float().numpy())
    with pytest.raises(InputError, match="the bytes of input 'x' have the other byte order"):
        _program().loaded(swapped)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float32], ids=str)
@pytest.mark.parametrize("given", ["torch by DLPack", "DLPack", "ml_dtypes"])
def test_its_bits_are_no_other_number(given, dtype):
    """uint16 has the same arrays: they were taken without a word."""
    exported = torch.export.export(NamedFunction(lambda x: x.float() + 1).eval(), (X.float().abs().to(dtype),))
    with pytest.raises(InputError, match=f"is bfloat16, but the program takes {str(dtype).removeprefix('torch.')}"):
        delegate.to_backend(exported, []).loaded(TAKEN[given])


def test_results_may_be_given_again():
    program = _program()
    twice = program(program(X)).float()
    np.testing.assert_array_equal(_values(program.loaded(program.loaded(TAKEN["bits"]))), twice)


def test_numbers_with_fractions_are_no_integers():
    program = delegate.to_backend(torch.export.export(NamedFunction(torch.neg).eval(), (torch.arange(2),)), [])
    assert program.loaded([1, 2]).tolist() == [-1, -2]
    with pytest.raises(InputError, match="would lose the fractional part"):
        program.loaded([1.5, 2.0])


class _Written(torch.nn.Module):
    def forward(self, x):
        x.mul_(2)
        return x + 1


def test_written_inputs():
    program = delegate.to_backend(torch.export.export(_Written(), (X,)), [])
    for given in (TAKEN["ml_dtypes"].copy(), np.asfortranarray(TAKEN["ml_dtypes"])):
        result = program.loaded(given)
        np.testing.assert_array_equal(given.astype(np.float32), (X * 2).float().numpy())
        np.testing.assert_array_equal(_values(result), (X * 2 + 1).float().numpy())


def test_ml_dtypes_is_not_imported(tmp_path):
    _program().save(tmp_path / "half.dlg")
    code = (
        "import sys, numpy, delegate\n"
        f"p = delegate.load({str(tmp_path / 'half.dlg')!r})\n"
        "p(numpy.zeros((3, 4), numpy.float32).view(numpy.uint16)[:, ::2].copy().view())\n"
        "assert 'ml_dtypes' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
