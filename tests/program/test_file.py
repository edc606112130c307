"""Saving and loading: what goes in comes out, mapped and aligned; a failed save leaves no trace."""

from __future__ import annotations

import errno
import gc
import io
import math
import os
import pathlib
import resource
import signal
import tracemalloc

import numpy as np
import pytest

from delegate.errors import ProgramError
from delegate.program import file
from delegate.program.dtypes import DType
from delegate.program.expr import Op
from delegate.program.file import load, save, serialize
from delegate.program.model import Constant, DelegateSpec, Input, KernelCall, Program, Ref, Tree
from delegate.program.segments import CHUNK, checksums
from tests.support.programs import S0, SAMPLES, binary, const, empty, replace_instruction, replace_method, static

samples = pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)


def with_segments(*segments: bytes | memoryview) -> Program:
    tensors = tuple(Constant(f"c{i}", DType.uint8, (len(s),), i) for i, s in enumerate(segments))
    return empty()._replace(constants=tensors, segments=segments)


@samples
@pytest.mark.parametrize(
    "kind", [bytes, bytearray, memoryview, io.BytesIO, lambda b: memoryview(np.frombuffer(b, "u1"))]
)
def test_round_trip_in_memory(make, kind):
    program = make()
    assert load(kind(serialize(program))) == program


@samples
@pytest.mark.parametrize("kind", [str, pathlib.Path])
def test_round_trip_on_disk(make, kind, tmp_path):
    program, path = make(), tmp_path / "ä program.dlg"
    save(program, kind(path))
    assert load(kind(path)) == program
    with open(path, "rb") as opened:
        assert load(opened) == program
    assert os.listdir(tmp_path) == [path.name]


@samples
def test_the_same_program_gives_the_same_bytes(make, tmp_path):
    first = serialize(make())
    save(make(), tmp_path / "a.dlg")
    save(load(tmp_path / "a.dlg"), tmp_path / "b.dlg")
    assert first == serialize(make()) == serialize(load(first))
    assert first == (tmp_path / "a.dlg").read_bytes() == (tmp_path / "b.dlg").read_bytes()


def test_the_order_of_compile_specs_does_not_count():
    specs = [DelegateSpec("d", "b", 0, s) for s in ({"a": 1, "b": 2}, {"b": 2, "a": 1})]
    first, second = (empty()._replace(delegates=(s,), segments=(b"",)) for s in specs)
    assert serialize(first) == serialize(second)


@pytest.mark.parametrize(
    "arg",
    [None, True, False, 0, -1, 2**63 - 1, -(2**63), 0.0, 5e-324, math.inf, -math.inf, 1j, complex(-0.0, math.inf), "",
     "text", "\0", "𝄞", *DType, Ref(0), S0, const(-5), (), ((),), (1, (2.0, (None, ("a",)))), (Ref(0), Ref(0))],
)  # fmt: skip
def test_every_argument_keeps_type_and_value(arg):
    program = replace_method(SAMPLES["dynamic"](), outputs=(Ref(2), arg))
    (made,) = load(serialize(program)).methods[0].outputs[1:]
    assert repr(made) == repr(arg)


def test_nan_and_minus_zero_survive():
    program = replace_method(SAMPLES["dynamic"](), outputs=(Ref(2), (math.nan, -0.0, complex(math.nan, -0.0))))
    assert repr(load(serialize(program)).methods[0].outputs[1]) == "(nan, -0.0, (nan-0j))"


@pytest.mark.parametrize("dtype", DType)
def test_every_dtype_survives(dtype):
    data = bytes(range(2 * dtype.itemsize))
    program = empty()._replace(constants=(Constant("c", dtype, (2, 1), 0),), segments=(data,))
    assert load(serialize(program)) == program


def test_segments_are_stored_once():
    shared = bytes(range(256)) * 40
    once, thrice = serialize(with_segments(shared)), serialize(with_segments(shared, b"other", shared, shared))
    assert len(thrice) < len(once) + 1000
    assert [bytes(s) for s in load(thrice).segments] == [shared, b"other", shared, shared]


@pytest.mark.parametrize(
    "sizes", [(), (0,), (0, 0, 1), (1, 0), (64, 0, 64, 0), (63, 65, 0), (CHUNK - 1, CHUNK, CHUNK + 1)]
)
def test_segments_of_all_sizes(sizes, tmp_path):
    program = with_segments(*(bytes([i + 1]) * size for i, size in enumerate(sizes)))
    save(program, tmp_path / "p.dlg")
    assert load(tmp_path / "p.dlg") == program


def test_large_segments_are_hashed_by_many_threads_as_by_one():
    data = [os.urandom(5 * CHUNK + 3), b"", os.urandom(7)]
    assert checksums([memoryview(d) for d in data]) == [checksums([memoryview(d)])[0] for d in data]


def test_mapped_segments_are_aligned_read_only_and_no_copies(tmp_path):
    save(with_segments(b"1", b"23", b"456"), tmp_path / "p.dlg")
    program = load(tmp_path / "p.dlg")
    arrays = [np.frombuffer(s, np.uint8) for s in program.segments]
    assert [a.tobytes() for a in arrays] == [b"1", b"23", b"456"]
    assert all(a.ctypes.data % 64 == 0 and not a.flags.writeable for a in arrays)
    assert np.diff([a.ctypes.data for a in arrays]).tolist() == [64, 64]
    assert all(isinstance(s, memoryview) and s.readonly for s in program.segments)


def test_the_mapping_lives_as_long_as_its_last_view(tmp_path):
    path = str(tmp_path / "p.dlg")
    save(with_segments(b"alive" * 1000), path)
    array = np.frombuffer(load(path).segments[0], np.uint8)
    os.unlink(path)
    gc.collect()
    assert array.tobytes() == b"alive" * 1000
    maps = pathlib.Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("this system does not list the mappings of a process")
    assert path in maps.read_text()
    del array
    gc.collect()
    assert path not in maps.read_text()


def test_saving_over_a_mapped_program_leaves_it_valid(tmp_path):
    path = tmp_path / "p.dlg"
    save(with_segments(b"old" * 5000), path)
    old = load(path)
    save(with_segments(b"new"), path)
    assert bytes(old.segments[0]) == b"old" * 5000
    assert bytes(load(path).segments[0]) == b"new"


def test_saving_and_loading_copy_no_segments(tmp_path):
    segments = [np.full(16 * CHUNK, i, np.uint8).data for i in range(2)]
    program = with_segments(*segments)
    tracemalloc.start()
    try:
        save(program, tmp_path / "p.dlg")
        loaded = load(tmp_path / "p.dlg")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * CHUNK
    assert [s[-1] for s in loaded.segments] == [0, 1]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.dlg"
    link.symlink_to(tmp_path / "real" / "p.dlg")
    save(static(), link)
    assert link.is_symlink()
    assert load(tmp_path / "real" / "p.dlg") == static()


class TestFailedSave:
    @pytest.fixture
    def path(self, tmp_path):
        """A file that holds `static` already."""
        save(static(), tmp_path / "p.dlg")
        return tmp_path / "p.dlg"

    @pytest.mark.parametrize("call", ["fsync", "replace"])
    def test_a_full_disk_keeps_the_old_file(self, call, path, tmp_path, monkeypatch):
        raises = pytest.raises(ProgramError, match=r"No space left on device \(.*p\.dlg\): free some space")
        monkeypatch.setattr(
            file.os, call, lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device"))
        )
        with raises:
            save(empty(), path)
        assert os.listdir(tmp_path) == ["p.dlg"]
        assert load(path) == static()

    def test_a_limit_of_the_system_keeps_the_old_file(self, path, tmp_path):
        raises = pytest.raises(ProgramError, match=r"File too large \(.*p\.dlg\)")
        limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            with raises:
                save(with_segments(bytes(1 << 20)), path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        assert os.listdir(tmp_path) == ["p.dlg"]
        assert load(path) == static()

    def test_an_interrupt_keeps_the_old_file(self, path, tmp_path, monkeypatch):
        monkeypatch.setattr(file.os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            save(empty(), path)
        assert os.listdir(tmp_path) == ["p.dlg"]
        assert load(path) == static()

    def test_a_program_that_is_not_valid_is_not_saved(self, path):
        raises = pytest.raises(ProgramError, match="there is no operator 99")
        with raises:
            save(replace_instruction(static(), 0, operator=99), path)
        assert load(path) == static()

    @pytest.mark.parametrize(
        ("name", "match"),
        [
            ("absent/p.dlg", "No such file or directory .*: create the directory .*absent first"),
            ("p.dlg/q.dlg", "Not a directory"),
            (".", "this is not a file"),
            ("x" * 300, "File name too long"),
            ("a\0b", "null"),
        ],
    )
    def test_an_impossible_path(self, name, match, path, tmp_path):
        with pytest.raises(ProgramError, match=match):
            save(static(), f"{tmp_path}/{name}")
        assert os.listdir(tmp_path) == [path.name]

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_directory_without_permission(self, tmp_path):
        tmp_path.chmod(0o500)
        with pytest.raises(ProgramError, match=r"Permission denied .*: use a path that you can write to"):
            save(static(), tmp_path / "p.dlg")

    def test_a_device_is_not_replaced(self):
        with pytest.raises(ProgramError, match="this is not a file"):
            save(static(), os.devnull)
        assert not os.path.isfile(os.devnull)


class TestUnreadable:
    @pytest.mark.parametrize(
        ("name", "match"),
        [
            ("absent.dlg", r"No such file or directory \(.*absent\.dlg\): check the path"),
            (".", "this is not a file"),
            ("empty.dlg", r"this is not a delegate program file \(.*empty\.dlg\): the file is truncated or empty"),
            ("a\0b", "null"),
            ("pipe", "this is not a file"),
        ],
    )
    def test_path(self, name, match, tmp_path):
        (tmp_path / "empty.dlg").touch()
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ProgramError, match=match):
            load(f"{tmp_path}/{name}")

    @pytest.mark.parametrize("source", [io.StringIO("text"), memoryview(b"0123456789")[::2]], ids=["text", "strided"])
    def test_object(self, source):
        with pytest.raises(ProgramError):
            load(source)

    def test_closed_file_object(self, tmp_path):
        save(static(), tmp_path / "p.dlg")
        with open(tmp_path / "p.dlg", "rb") as opened:
            pass
        with pytest.raises(ProgramError, match=r"closed file \(.*p\.dlg\)"):
            load(opened)


def deep_tree(depth: int) -> Tree:
    tree = Tree("leaf")
    for _ in range(depth):
        tree = Tree("list", (), (tree,))
    return tree


def deep_expr(depth: int):
    expr = S0
    for _ in range(depth):
        expr = binary(Op.ADD, expr, S0)
    return expr


def deep_list(depth: int):
    made = ()
    for _ in range(depth):
        made = (made,)
    return made


def wide_expr(depth: int):
    """An expression of 2 ** depth nodes that takes little memory."""
    part = S0
    for _ in range(depth):
        part = binary(Op.ADD, part, part)
    return part


@pytest.mark.parametrize(
    ("output", "match"),
    [
        (2**63, "a value that cannot be saved"),
        (object(), "an argument cannot be a object"),
        ([1], "an argument cannot be a list"),
        ("\ud800", "a value that cannot be saved"),
        (deep_list(70), "nested deeper than 64"),
        (deep_list(20_000), "too deeply"),
        (deep_expr(70), "an expression is too large"),
        (wide_expr(40), "too large"),
    ],
)
def test_what_cannot_be_saved_is_refused(output, match):
    with pytest.raises(ProgramError, match=match):
        serialize(replace_method(SAMPLES["dynamic"](), outputs=(Ref(2), output)))


@pytest.mark.parametrize(
    "change",
    [
        {"out_tree": deep_tree(70)},
        {"out_tree": Tree("bag", (), (Tree("leaf"),) * 2)},
        {"sources": (3,)},
        {"inputs": (Input("x", 2**40),)},
    ],
)
def test_a_method_that_cannot_be_saved_is_refused(change):
    with pytest.raises(ProgramError):
        serialize(replace_method(SAMPLES["dynamic"](), **change))


@pytest.mark.parametrize("specs", [{"a": b"bytes"}, {"a": math.nan}, {"a": object()}])
def test_compile_specs_that_are_not_json_are_refused(specs):
    program = empty()._replace(delegates=(DelegateSpec("d", "b", 0, specs),), segments=(b"",))
    with pytest.raises(ProgramError, match="a value that cannot be saved"):
        serialize(program)


def test_loading_many_instructions_needs_no_deep_stack():
    first = static().methods[0]
    count = 5000
    calls = tuple(KernelCall(0, (Ref(0), Ref(1)), ()) for _ in range(count))
    program = replace_method(static(), instructions=(*first.instructions, *calls))
    assert len(load(serialize(program)).methods[0].instructions) == count + 4
