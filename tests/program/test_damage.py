"""Damaged, foreign and forged files: every one gives a ProgramError, none hangs or takes the process down."""

from __future__ import annotations

import contextlib
import random
import struct

import flatbuffers
import numpy as np
import pytest

from delegate.errors import ProgramError
from delegate.program import schema_generated as schema
from delegate.program.file import MAGIC, assemble, load, serialize
from delegate.program.model import Program
from tests.support import layout
from tests.support.programs import SAMPLES, dynamic, empty, replace_method, static, structured
from tests.support.sampling import every


def test_every_altered_byte_is_noticed():
    data = serialize(static())
    for at in range(len(data)):
        altered = bytearray(data)
        altered[at] ^= 1 << (at % 8)
        with pytest.raises(ProgramError):
            load(altered)


def test_every_truncation_is_noticed():
    data = serialize(static())
    for size in range(len(data)):
        with pytest.raises(ProgramError):
            load(data[:size])


@pytest.mark.parametrize("extra", [b"\0", b"\0" * 64, b"x"])
def test_something_appended_is_noticed(extra):
    with pytest.raises(ProgramError, match="its header declares"):
        load(serialize(static()) + extra)


def test_random_bytes():
    source = random.Random(0)
    for size in range(0, 600, 3):
        noise = source.randbytes(size)
        for data in (noise, MAGIC + noise, serialize(empty())[:64] + noise):
            with pytest.raises(ProgramError):
                load(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((8, "<I", 7), "format version 7, but this delegate reads version 6: install delegate 0.1.0 or newer"),
        ((8, "<I", 5), "format version 5, but this delegate reads version 6: lower the model again"),
        ((12, "<I", 1), "must be zero"),
        ((64, "<I", 1), "must be zero"),
        ((32, "<Q", 64), "sizes in the header"),
        ((40, "<Q", 1 << 62), "sizes in the header"),
        ((48, "<Q", 0), "sizes in the header"),
        ((56, "<Q", 1 << 63), "its header declares"),
    ],
)
def test_a_forged_header(change, message):
    data = bytearray(serialize(static()))
    struct.pack_into(change[1], data, change[0], change[2])
    with pytest.raises(ProgramError, match=message):
        load(layout.seal(bytes(data)))


def test_a_newer_file_with_an_unreadable_release_is_refused_without_repeating_it():
    data = bytearray(serialize(static()))
    struct.pack_into("<I4x16s", data, 8, 7, b"\x1b[31m evil\xff")
    with pytest.raises(ProgramError, match="install a newer delegate"):
        load(data)


def test_an_altered_segment_names_what_it_belongs_to():
    data = bytearray(serialize(static()))
    start = layout.number(data, layout.SEGMENTS_AT)
    data[start] ^= 1
    with pytest.raises(ProgramError, match=r"segment 0 was altered: its checksum does not match \(constant 'weight'\)"):
        load(data)
    data[start] ^= 1
    data[start + 64] ^= 1
    with pytest.raises(ProgramError, match=r"segment 1 was altered.*\(delegate 'xnnpack_0'\)"):
        load(data)


def test_swapped_segments_are_noticed():
    data = bytearray(serialize(static()._replace(segments=(bytes(32), b"a blob", b"\1" * 32))))
    start = layout.number(data, layout.SEGMENTS_AT)
    data[start : start + 32], data[start + 128 : start + 160] = (
        data[start + 128 : start + 160],
        data[start : start + 32],
    )
    with pytest.raises(ProgramError, match="segment 0 was altered"):
        load(data)


@pytest.mark.extended
@pytest.mark.parametrize("make", every(4, SAMPLES.values()), ids=SAMPLES)
def test_tables_altered_anywhere_with_right_checksums(make):
    """Every byte of the tables in turn: the file is refused, or what it now says is a sound program."""
    data = serialize(make())
    survived = 0
    for at in range(layout.HEADER, layout.HEADER + len(layout.tables(data))):
        altered = bytearray(data)
        altered[at] = (0x00, 0x7F, 0xFF)[at % 3] if at % 5 else data[at] ^ 1
        with contextlib.suppress(ProgramError):
            assert isinstance(load(layout.seal(bytes(altered))), Program)
            survived += 1
    assert survived > 0


def test_no_tables_at_all():
    with pytest.raises(ProgramError):
        load(layout.with_tables(serialize(empty()), b""))


@pytest.mark.parametrize(
    "program",
    [
        replace_method(dynamic(), symbols=()),
        static()._replace(segments=(b"", b"")),
        structured()._replace(states=()),
    ],
)
def test_a_program_that_is_not_valid_is_not_loaded(program):
    with pytest.raises(ProgramError):
        load(b"".join(assemble(program)))


class Forger:
    """Makes tables whose parts are shared: small files that say they are huge."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder()

    def vector(self, table: int, count: int) -> int:
        self.builder.StartVector(4, count, 4)
        for _ in range(count):
            self.builder.PrependUOffsetTRelative(table)
        return self.builder.EndVector()

    def table(self, name: str, **fields: int) -> int:
        getattr(schema, f"{name}Start")(self.builder)
        for field, value in fields.items():
            getattr(schema, f"{name}Add{field}")(self.builder, value)
        return getattr(schema, f"{name}End")(self.builder)

    def method(self, count: int = 1, **fields: int) -> bytes:
        empty_args, exprs = self.table("Args"), self.table("Exprs")
        leaf = self.vector(self.table("TreeNode", Keys=empty_args), 1)
        given = {"Outputs": empty_args, "InTree": leaf, "OutTree": leaf, "Exprs": exprs}
        given |= {"Values": self.table("Values"), "Instructions": self.table("Instructions", Args=empty_args)} | fields
        return self.program(Methods=self.vector(self.table("Method", **given), count))

    def program(self, **fields: int) -> bytes:
        self.builder.Finish(self.table("Program", Segments=self.table("Segments"), **fields), b"DLG1")
        return layout.with_tables(serialize(empty()), bytes(self.builder.Output()))


def shared_methods(forger: Forger) -> bytes:
    names = forger.vector(forger.builder.CreateString("v" * 1000), 1000)
    return forger.method(1000, Texts=names)


def nested(forger: Forger, depth: int, width: int) -> bytes:
    """Blocks within blocks, every one of `width` equal instructions that share their parts."""
    args = forger.table("Args")
    instructions = forger.table("Instructions", Args=args)
    for _ in range(depth):
        block = forger.table("Block", Instructions=instructions)
        structured = forger.vector(forger.table("Structured", Blocks=forger.vector(block, 1)), width)
        zeros = [forger.builder.CreateNumpyVector(np.zeros(width, "uint32")) for _ in range(4)]
        kinds = forger.builder.CreateByteVector(bytes([schema.CallKind.STRUCTURED] * width))
        instructions = forger.table(
            "Instructions", Kinds=kinds, Targets=zeros[0], Sources=zeros[1], ArgCounts=zeros[2], OutputCounts=zeros[3],
            Structured=structured, Args=args,
        )  # fmt: skip
    return forger.method(Instructions=instructions)


def shared_blocks(forger: Forger) -> bytes:
    return nested(forger, 60, 2)


def deep_blocks(forger: Forger) -> bytes:
    return nested(forger, 5000, 1)


def doubling_exprs(forger: Forger) -> bytes:
    count = 60
    first = forger.builder.CreateNumpyVector(np.arange(-1, count - 1, dtype="int64"))
    second = forger.builder.CreateNumpyVector(np.arange(-1, count - 1).clip(0).astype("uint32"))
    ops = forger.builder.CreateByteVector(bytes([0] + [2] * (count - 1)))
    return forger.method(Exprs=forger.table("Exprs", Ops=ops, First=first, Second=second))


def long_list(forger: Forger) -> bytes:
    kinds = forger.builder.CreateByteVector(bytes([schema.ArgKind.LIST]) * 200)
    values = forger.builder.CreateNumpyVector(np.full(200, 2**62, "int64"))
    return forger.method(Outputs=forger.table("Args", Kinds=kinds, Values=values))


def many_children(forger: Forger) -> bytes:
    node = forger.table("TreeNode", Kind=1, Children=2**32 - 1, Keys=forger.table("Args"))
    return forger.method(InTree=forger.vector(node, 3))


def deep_json(forger: Forger) -> bytes:
    specs = forger.builder.CreateString('{"a":' + "[" * 200_000)
    return forger.program(Delegates=forger.vector(forger.table("Delegate", CompileSpecs=specs), 1))


def one_call(forger: Forger, kind: int = 0, args: int = 0, outputs: int = 0) -> bytes:
    """One instruction that says how many arguments and outputs it has, of which there is one each."""
    number = forger.builder.CreateNumpyVector
    one = forger.table("Args", Kinds=forger.builder.CreateByteVector(b"\0"), Values=number(np.zeros(1, "int64")))
    fields = {
        "Kinds": forger.builder.CreateByteVector(bytes([kind])),
        "Targets": number(np.zeros(1, "uint32")),
        "Sources": number(np.full(1, -1, "int32")),
        "ArgCounts": number(np.full(1, args, "uint32")),
        "OutputCounts": number(np.full(1, outputs, "uint32")),
        "Outputs": number(np.zeros(1, "uint32")),
    }
    return forger.method(Instructions=forger.table("Instructions", Args=one, **fields))


def unknown_call(forger: Forger) -> bytes:
    return one_call(forger, 77, 1, 1)


def delegate_of_none(forger: Forger) -> bytes:
    return one_call(forger, schema.CallKind.DELEGATE, 1, 1)


def many_args(forger: Forger) -> bytes:
    return one_call(forger, args=2**32 - 1, outputs=1)


def many_outputs(forger: Forger) -> bytes:
    return one_call(forger, args=1, outputs=2**32 - 1)


def args_left(forger: Forger) -> bytes:
    return one_call(forger, outputs=1)


def odd_directory(forger: Forger) -> bytes:
    digests = forger.builder.CreateByteVector(bytes(33))
    forger.builder.Finish(forger.table("Program", Segments=forger.table("Segments", Sha256=digests)), b"DLG1")
    return layout.with_tables(serialize(empty()), bytes(forger.builder.Output()))


@pytest.mark.parametrize(
    "forge",
    [shared_methods, shared_blocks, deep_blocks, doubling_exprs, long_list, many_children, deep_json,
     unknown_call, delegate_of_none, many_args, many_outputs, args_left, odd_directory],
)  # fmt: skip
def test_forged_tables(forge):
    with pytest.raises(ProgramError, match="the tables of the file are"):
        load(forge(Forger()))


@pytest.mark.parametrize(
    ("offsets", "sizes"),
    [([64], [8]), ([0], [9]), ([0], [7]), ([0, 0], [8, 4]), ([0, 2**63], [8, 2**63]), ([], []), ([8], [0])],
)
def test_a_forged_directory(offsets, sizes):
    """The area holds one segment of eight bytes; checksums are those of the bytes that the entries name."""
    forger = Forger()
    fields = {
        "Offsets": forger.builder.CreateNumpyVector(np.array(offsets, "uint64")),
        "Sizes": forger.builder.CreateNumpyVector(np.array(sizes, "uint64")),
        "Sha256": forger.builder.CreateByteVector(bytes(32 * len(sizes))),
    }
    forger.builder.Finish(forger.table("Program", Segments=forger.table("Segments", **fields)), b"DLG1")
    base = serialize(empty()._replace(segments=(b"12345678",)))
    with pytest.raises(ProgramError, match=r"cannot be at|segments end at"):
        load(layout.with_tables(base, bytes(forger.builder.Output())))
