"""Separately stored weights: stored once for all partitions that share them, in 16 bits if this is lossless."""

import struct

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.backend.qdq import Coded
from delegate.backends.xnnpack.runtime.delegate import XnnpackRuntime
from delegate.backends.xnnpack.runtime.weights import LEAST, assemble, extract_constants, pieces
from delegate.errors import BackendFailed, ProgramError
from delegate.program.verifier import verify
from tests.backends.xnnpack.harness import lower
from tests.support.lowering import assert_runs, assert_same

N = LEAST // 4
F32 = np.random.default_rng(0).standard_normal(N + 3).astype(np.float32)
KINDS = {
    "whole": (F32, ""),
    "float16": (F32.astype(np.float16).astype(np.float32), "float16"),
    "bfloat16": ((F32.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32), "bfloat16"),
    "special": (np.array([np.inf, -np.inf, -0.0, 65504, 2**-24, *F32.astype(np.float16)], np.float32), "float16"),
    "too_large_for_float16": (np.array([65505.0, *F32.astype(np.float16)], np.float32), ""),
    "integers": (np.arange(N, dtype=np.int32), ""),
    "int8": (np.arange(4 * N, dtype=np.int64).astype(np.int8), ""),
    "int4": ((np.arange(4 * N) % 16 - 8).astype(np.int8), "int4"),
}


@pytest.mark.parametrize("name", KINDS)
def test_extracted_constants_are_assembled_again(name):
    array, kind = KINDS[name]
    sizes = [struct.pack("<I", size) for size in (array.nbytes, 4 * N)]
    model = b"1234" + sizes[0] + array.tobytes() + b"abc" + sizes[1] + F32.tobytes()[: 4 * N]
    constants = [(8, array, None), (15 + array.nbytes, F32[:N], None)]
    rest, places, data = extract_constants(model, constants)
    assert rest == b"1234" + sizes[0] + b"abc" + sizes[1]
    assert places == [(8, kind), (15, "")]
    assert data[0].nbytes == array.nbytes // (2 if kind else 1)
    assert assemble(memoryview(rest), pieces(memoryview(rest), places, data)) == model


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", [1, 32, 128], ids="runs of {}".format)
@pytest.mark.parametrize("zeros", [False, True])
def test_floats_decoded_from_integers(bits, size, zeros):
    draw = np.random.default_rng(bits)
    values = draw.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (64, 128)).astype(np.int8)
    scale = draw.random((64, 128 // size)).astype(np.float32)
    zero = draw.integers(-128, 128, scale.shape) if zeros else None
    coded = Coded(values, scale, zero, bits)
    assert coded.in_runs
    floats = coded.decoded()
    assert_assembled(floats, coded, values.size * bits // 8 + scale.size * (5 if zeros else 4))


def assert_assembled(floats, coded, stored):
    model = struct.pack("<I", floats.nbytes) + floats.tobytes()
    rest, places, data = extract_constants(model, [(4, floats, coded)])
    assert data[0].nbytes == stored
    assert assemble(memoryview(rest), pieces(memoryview(rest), places, data)) == model


@pytest.mark.parametrize("small", [False, True], ids=["8 bits", "4 bits would do"])
def test_integers_of_uneven_count(small):
    values = np.random.default_rng(0).integers(*((-8, 8) if small else (-128, 128)), (33, 33)).astype(np.int8)
    coded = Coded(values, np.linspace(0.1, 1, 99, dtype=np.float32).reshape(33, 3))
    assert_assembled(coded.decoded(), coded, values.size + 4 * 99)


@pytest.mark.parametrize(
    ("shape", "scale", "zero"), [((4, 4), (1, 4), None), ((4, 4), (2, 4), None), ((4, 4), (4, 1), 0.5)], ids=str
)
def test_not_in_runs(shape, scale, zero):
    zeros = None if zero is None else np.full(scale, zero)
    assert not Coded(np.ones(shape, np.int8), np.ones(scale, np.float32), zeros).in_runs


def test_small_constants_stay():
    model = F32.tobytes()
    assert extract_constants(model, [(0, F32[: N - 1], None)]) == (model, [], [])


class Language(nn.Module):
    """Layers of two methods."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x):
        return x + self.layers(x)


@pytest.mark.parametrize("isolate", [False, True])
def test_two_methods_store_their_weights_once(tmp_path, isolate):
    module = Language().eval()
    shapes = {"prefill": (1, 9, 64), "decode": (1, 1, 64)}
    exported = {name: torch.export.export(module, (torch.randn(shape),)) for name, shape in shapes.items()}
    both = delegate.to_backend(exported, "xnnpack")
    assert_runs(both, "xnnpack")
    both.save(tmp_path / "both.dlg")
    weights = sum(p.numel() for p in module.parameters()) * 4
    assert (tmp_path / "both.dlg").stat().st_size < 1.2 * weights
    with delegate.load(tmp_path / "both.dlg", isolate=isolate) as program, torch.no_grad():
        for name, shape in shapes.items():
            x = torch.randn(shape)
            assert_same(program.method(name)(x), module(x))


@pytest.mark.parametrize(
    ("places", "count"),
    [
        ([], 1),
        ([(0, "")], 0),
        ([(0, "runs")], 1),
        ([(0, "runs", 4096, 2, 32, False)], 1),
        ([(0, "runs", 4096, 4, 0, False)], 1),
        ([(0, "runs", 4095, 4, 35, False)], 1),
        ([(0, "runs", 10**12, 4, 32, False)], 1),
        ([(0, "runs", "4096", 4, 32, False)], 1),
        ([(0, "runs", 4096, 4, -32, True)], 1),
        ([(-1, "")], 1),
        ([(10**9, "")], 1),
        ([(0, "")], 1),
        ([(4, "float16")], 1),
        ([(0, "float8")], 1),
        ([("0", "")], 1),
        ([0], 1),
    ],
    ids=str,
)
def test_forged_places(places, count):
    lowered = lower(nn.Linear(64, 64), (torch.randn(2, 64),)).result
    assert len(lowered.data) == 1
    specs = {**lowered.compile_specs, "weights": places}
    with pytest.raises(BackendFailed, match="not written by this backend"):
        XnnpackRuntime().init_with_data(memoryview(lowered.blob), lowered.data[:count], specs)


def test_data_of_a_delegate_that_is_missing():
    program = delegate.to_backend(torch.export.export(nn.Linear(64, 64), (torch.randn(2, 64),)), "xnnpack").program
    (spec,) = program.delegates
    with pytest.raises(ProgramError, match="no segment 9"):
        verify(program._replace(delegates=(spec._replace(data=(9,)),)))
