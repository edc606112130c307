"""The one room for raw memory: what it refuses, and that nothing beside it makes such arrays."""

import ast
from pathlib import Path

import numpy as np
import pytest

import delegate
from delegate.errors import KernelError
from delegate.kernels.portable import TABLE
from delegate.program import raw

ROOM = "program/raw.py"
# What makes arrays over memory that NumPy does not check, or changes how an array lies in it.
RAW = {
    "as_strided", "sliding_window_view", "stride_tricks", "frombuffer", "from_address", "memmap", "as_array",
    "string_at", "memmove", "from_buffer",
}  # fmt: skip
# In kernels too what NumPy checks in part: each of these has crashed, or written beside its result, in a hostile call.
CALLS = {"diagonal", "at", "repeat", "bincount"}
# Uses beside the room, each with the reason why it needs no check there.
ALLOWED = {
    ("backend/transfer.py", "as_strided"),  # by torch, which checks, of a tensor that the parent process sends
    ("backend/transfer.py", "frombuffer"),
    ("edge/graphs.py", "as_strided"),  # ahead of time, by torch, which checks
    ("kernels/copies.py", "as_strided"),  # the kernel, which calls the room
    ("program/segments.py", "frombuffer"),  # bytes of a view, for their place in memory
    ("backends/xnnpack/runtime/delegate.py", "resize("),  # of a model, not of an array
    ("backends/xnnpack/aot/backend.py", "resize("),
    ("runtime/inputs.py", "from_address"),  # a field of the tensor that a caller in this process gives by DLPack
}


def uses(tree: ast.AST, calls: set[str] = CALLS) -> set[str]:
    """The names of RAW that a module imports or takes from another, its calls of `calls`, and new strides."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.alias(name=name) | ast.Name(id=name):
                found |= {name, *name.split(".")} & RAW
            case ast.Assign(targets=[ast.Attribute(attr="strides")]):
                found.add("strides =")
        match node:
            case ast.Call(func=ast.Attribute(attr="ndarray" | "resize" as name) | ast.Name(id="ndarray" as name)):
                found.add(f"{name}(")
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in calls:
                if not (isinstance(value, ast.Name) and value.id == "raw"):
                    found.add(f"{name}(")
    return found


@pytest.mark.extended
def test_nothing_beside_the_room_makes_raw_arrays():
    root = Path(delegate.__file__).parent
    places = {path: str(path.relative_to(root)) for path in root.rglob("*.py")}
    found = {
        (place, name)
        for path, place in places.items()
        if place != ROOM
        for name in uses(ast.parse(path.read_text()), CALLS if place.startswith("kernels/") else set())
    }
    assert found == ALLOWED


@pytest.mark.parametrize("line", [
    "np.lib.stride_tricks.as_strided(x)", "from numpy.lib.stride_tricks import sliding_window_view", "np.frombuffer(b)",
    "np.ndarray((2,), buffer=b)", "x.strides = (1,)", "ctypes.c_int.from_address(1)", "x.resize(4)", "np.memmap('f')",
    "np.repeat(x, 2)", "x.repeat(2)", "np.add.at(x, i, 1)", "x.diagonal(3)", "np.bincount(x)",
])  # fmt: skip
def test_the_search_finds(line):
    assert uses(ast.parse(line))


def test_the_room_itself_is_searched():
    assert uses(ast.parse((Path(delegate.__file__).parent / ROOM).read_text())) >= {"as_strided", "frombuffer", "at("}


LIMITS = np.array([3, 4], np.int64)
X = np.arange(24, dtype=np.int32)


@pytest.mark.parametrize(("shape", "strides", "offset"), [
    ((2,), (24,), 0), ((25,), (1,), 0), ((2,), (-1,), 0), ((3, 3), (9, -9), 9), ((2, 2), (100, -100), 5),
    ((1,), (0,), 24), ((1,), (0,), -1), ((2**62, 4), (0, 1), 0), ((-1,), (1,), 0), ((2,), (2**62,), 0),
    ((2,), (1, 1), 0),
])  # fmt: skip
def test_strides_that_lead_out_are_refused(shape, strides, offset):
    with pytest.raises(KernelError):
        raw.strided(X, shape, strides, offset)


@pytest.mark.parametrize(("shape", "strides", "offset"), [
    ((24,), (-1,), 23), ((2, 3), (12, 4), 3), ((4, 4), (0, 0), 23), ((0, 5), (99, 99), 99), ((), (), 23),
])  # fmt: skip
def test_strides_within_are_taken(shape, strides, offset):
    places = offset + sum(np.arange(n).reshape(-1, *[1] * (len(shape) - 1 - i)) * s
                          for i, (n, s) in enumerate(zip(shape, strides, strict=True)))  # fmt: skip
    np.testing.assert_array_equal(
        raw.strided(X, shape, strides, offset), X[places] if 0 not in shape else np.empty(shape)
    )


@pytest.mark.parametrize(("kernel", "stride", "dilation", "count"), [
    ((3,), (1,), (1,), (5,)), ((1,), (1,), (1,), (7,)), ((1,), (-1,), (1,), (2,)), ((2,), (1,), (-1,), (2,)),
    ((2,), (2**62,), (1,), (2,)), ((-1,), (1,), (1,), (1,)), ((1,), (1,), (1,), (-1,)), ((1, 1), (1,), (1,), (1,)),
    ((7,), (1,), (1,), (1,)), ((1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
])  # fmt: skip
def test_windows_that_lead_out_are_refused(kernel, stride, dilation, count):
    with pytest.raises(KernelError):
        raw.windows(X.reshape(4, 6), kernel, stride, dilation, count)


def test_windows():
    found = raw.windows(X.reshape(4, 6), (2,), (2,), (3,), (2,))
    assert found.shape == (4, 2, 2)
    assert found[1].tolist() == [[6, 8], [9, 11]]


@pytest.mark.parametrize(("shape", "offset"), [
    ((25,), 0), ((24,), 4), ((1,), 96), ((1,), -4), ((2**32, 2**32), 0), ((-1,), 0), ((-2, -12), 0), ((2**62, 0, 4), 0),
])  # fmt: skip
def test_an_array_beyond_its_bytes_is_refused(shape, offset):
    with pytest.raises(ValueError, match=r"does not fit|is invalid"):
        raw.array_over(X.tobytes(), X.dtype, shape, offset)


def test_an_array_over_bytes():
    assert raw.array_over(X.tobytes(), X.dtype, (2, 3), 8).tolist() == X[2:8].reshape(2, 3).tolist()
    assert raw.array_over(b"", X.dtype, (0, 3), 0).shape == (0, 3)


def test_room():
    raw.check_room((1 << 20, 64), np.dtype(bool))
    for shape in ((1 << 20, 65), (2**62, 2**62), (-1,)):
        with pytest.raises(KernelError, match="working memory"):
            raw.check_room(shape, np.dtype(bool))
    raw.check_room((1 << 20, 65), np.dtype(bool), np.zeros(1 << 20, bool))


@pytest.mark.parametrize("number", [-1, 2**63 - 1, 2**62, -(2**63)])
def test_numbers_that_nothing_counts_up_to_are_refused(number):
    with pytest.raises(KernelError, match="numbers to count"):
        raw.occurrences(np.array([0, number, 7]), None, 0)


@pytest.mark.parametrize("repeats", [2**62, -1, [2**62] * 4, [1, -1, 1, 1], 7])
def test_repeats_that_make_no_sense_are_refused(repeats):
    with pytest.raises(KernelError):
        raw.repeated(X[:4], np.asarray(repeats), 0, 4)


def test_a_diagonal_beside_the_matrix_is_empty():
    for offset in (-(2**31), 2**31, 2**62, -7, 7):
        assert raw.diagonal(X.reshape(4, 6), offset, 0, 1).shape == (0,)
    assert raw.diagonal(X.reshape(4, 6), -1, 0, 1).tolist() == [6, 13, 20]


def test_values_of_too_many_dimensions_are_not_added():
    with pytest.raises(KernelError, match="4 dimensions cannot be written to places of 2"):
        raw.combine_at(np.add, np.zeros((1, 8)), (slice(None), np.arange(5)), np.zeros((5, 2, 3, 1)))


@pytest.mark.parametrize(("op", "args", "shapes"), [
    ("aten._pdist_forward.default", (np.ones((3, 5), np.float32), 2.0), [(9,)]),
    ("aten.mode.default", (np.ones((5, 5), np.float32), -1, False), [(0,), (5,)]),
])  # fmt: skip
def test_results_that_would_not_be_filled_are_refused(op, args, shapes):
    results = tuple(np.empty(shape, dtype) for shape, dtype in zip(shapes, (np.float32, np.int64), strict=False))
    with pytest.raises(KernelError):
        TABLE.rows(op)[0].function(*args, out=results if len(results) > 1 else results[0])


@pytest.mark.parametrize(("op", "args"), [
    ("aten.randint.default", (LIMITS,)),
    ("aten.randint.low", (LIMITS, 10)),
    ("aten.randint.low", (0, LIMITS)),
    ("aten.randint_like.default", (X, LIMITS)),
    ("aten.randint_like.low_dtype", (X, LIMITS, 10)),
    ("aten.randint_like.low_dtype", (X, 0, LIMITS)),
])  # fmt: skip
def test_limits_of_random_integers_are_numbers(op, args):
    with pytest.raises(TypeError, match="only integer scalar arrays"):
        TABLE.rows(op)[0].function(*args, out=np.empty((), np.int64))
