# mypy: disable-error-code="untyped-decorator"
"""CUDA's WMMA instructions as tensor intrinsics of TVM: tiles of 16x16x16, operands of 16 bits, sums in float32.

TVM's own (`tvm.s_tir.tensor_intrin`) are the same without bfloat16; importing them parses the intrinsics of every
target, which takes a minute. Nothing here may be annotated lazily: TVM's parser reads the source of these functions.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

TILE = 16
_SHARED = "shared.dyn"


@dataclass(frozen=True)
class Intrinsics:
    """Names that `Schedule.tensorize` knows; the right operand is (columns, summed)."""

    load_a: str
    load_b: str
    fill: str
    multiply: str
    store: str


@cache
def intrinsics(dtype: str) -> Intrinsics:
    """Register the instructions for operands of "float16" or "bfloat16"."""
    made = Intrinsics(*(f"delegate_wmma_{name}_{dtype}" for name in ("load_a", "load_b", "fill", "multiply", "store")))
    TensorIntrin.register(made.load_a, *_load(dtype, "wmma.matrix_a", "row_major"))
    TensorIntrin.register(made.load_b, *_load(dtype, "wmma.matrix_b", "col_major"))
    TensorIntrin.register(made.fill, *_fill())
    TensorIntrin.register(made.multiply, *_multiply(dtype))
    TensorIntrin.register(made.store, *_store())
    return made


def _fragment(buffer: Any, stride: Any) -> Any:
    """The number of a tile within the fragments of a warp."""
    return buffer.elem_offset // stride // TILE * (stride // TILE) + buffer.elem_offset % stride // TILE


def _load(dtype: str, scope: str, layout: str) -> tuple[Any, Any]:
    @T.prim_func(s_tir=True)
    def what(a: T.handle, c: T.handle) -> None:
        lhs = T.match_buffer(a, (16, 16), dtype, align=64, offset_factor=16, scope=_SHARED)
        out = T.match_buffer(c, (16, 16), dtype, align=64, offset_factor=16, scope=scope)
        with T.sblock("root"):
            T.reads(lhs[0:16, 0:16])
            T.writes(out[0:16, 0:16])
            for i, j in T.grid(16, 16):
                with T.sblock("load"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    out[vi, vj] = lhs[vi, vj]

    @T.prim_func(s_tir=True)
    def how(a: T.handle, c: T.handle) -> None:
        s1, s0, d1, d0 = T.int32(), T.int32(), T.int32(), T.int32()
        lhs = T.match_buffer(a, (16, 16), dtype, align=64, offset_factor=16, scope=_SHARED, strides=[s1, s0])
        out = T.match_buffer(c, (16, 16), dtype, align=64, offset_factor=16, scope=scope, strides=[d1, d0])
        with T.sblock("root"):
            T.reads(lhs[0:16, 0:16])
            T.writes(out[0:16, 0:16])
            T.evaluate(
                T.tvm_load_matrix_sync(
                    out.data,
                    16,
                    16,
                    16,
                    _fragment(out, d1),
                    lhs.access_ptr("r", ptr_type=dtype),
                    s1,
                    layout,
                    dtype="void",
                )
            )

    return what, how


def _fill() -> tuple[Any, Any]:
    @T.prim_func(s_tir=True)
    def what(c: T.handle) -> None:
        out = T.match_buffer(c, (16, 16), "float32", align=64, offset_factor=16, scope="wmma.accumulator")
        with T.sblock("root"):
            T.reads()
            T.writes(out[0:16, 0:16])
            for i, j in T.grid(16, 16):
                with T.sblock("init"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    out[vi, vj] = T.float32(0)

    @T.prim_func(s_tir=True)
    def how(c: T.handle) -> None:
        d1, d0 = T.int32(), T.int32()
        out = T.match_buffer(
            c, (16, 16), "float32", align=64, offset_factor=16, scope="wmma.accumulator", strides=[d1, d0]
        )
        with T.sblock("root"):
            T.reads()
            T.writes(out[0:16, 0:16])
            T.evaluate(T.tvm_fill_fragment(out.data, 16, 16, 16, _fragment(out, d1), T.float32(0), dtype="void"))

    return what, how


def _store() -> tuple[Any, Any]:
    @T.prim_func(s_tir=True)
    def what(a: T.handle, c: T.handle) -> None:
        lhs = T.match_buffer(a, (16, 16), "float32", align=64, offset_factor=16, scope="wmma.accumulator")
        out = T.match_buffer(c, (16, 16), "float32", align=64, offset_factor=16, scope=_SHARED)
        with T.sblock("root"):
            T.reads(lhs[0:16, 0:16])
            T.writes(out[0:16, 0:16])
            for i, j in T.grid(16, 16):
                with T.sblock("store"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    out[vi, vj] = lhs[vi, vj]

    @T.prim_func(s_tir=True)
    def how(a: T.handle, c: T.handle) -> None:
        s1, s0, d1, d0 = T.int32(), T.int32(), T.int32(), T.int32()
        lhs = T.match_buffer(
            a, (16, 16), "float32", align=64, offset_factor=16, scope="wmma.accumulator", strides=[d1, d0]
        )
        out = T.match_buffer(c, (16, 16), "float32", align=64, offset_factor=16, scope=_SHARED, strides=[s1, s0])
        with T.sblock("root"):
            T.reads(lhs[0:16, 0:16])
            T.writes(out[0:16, 0:16])
            T.evaluate(
                T.tvm_store_matrix_sync(
                    lhs.data, 16, 16, 16, _fragment(lhs, d1), out.access_ptr("w", ptr_type="float32"), s1, "row_major",
                    dtype="void",
                )
            )  # fmt: skip

    return what, how


def _multiply(dtype: str) -> tuple[Any, Any]:
    @T.prim_func(s_tir=True)
    def what(a: T.handle, b: T.handle, c: T.handle) -> None:
        lhs = T.match_buffer(a, (16, 16), dtype, align=64, offset_factor=16, scope="wmma.matrix_a")
        rhs = T.match_buffer(b, (16, 16), dtype, align=64, offset_factor=16, scope="wmma.matrix_b")
        out = T.match_buffer(c, (16, 16), "float32", align=64, offset_factor=16, scope="wmma.accumulator")
        with T.sblock("root"):
            T.reads(out[0:16, 0:16], lhs[0:16, 0:16], rhs[0:16, 0:16])
            T.writes(out[0:16, 0:16])
            for i, j, k in T.grid(16, 16, 16):
                with T.sblock(""):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    out[vi, vj] = out[vi, vj] + T.Cast("float32", lhs[vi, vk]) * T.Cast("float32", rhs[vj, vk])

    @T.prim_func(s_tir=True)
    def how(a: T.handle, b: T.handle, c: T.handle) -> None:
        a1, a0, b1, b0, c1, c0 = T.int32(), T.int32(), T.int32(), T.int32(), T.int32(), T.int32()
        lhs = T.match_buffer(a, (16, 16), dtype, align=64, offset_factor=16, scope="wmma.matrix_a", strides=[a1, a0])
        rhs = T.match_buffer(b, (16, 16), dtype, align=64, offset_factor=16, scope="wmma.matrix_b", strides=[b1, b0])
        out = T.match_buffer(
            c, (16, 16), "float32", align=64, offset_factor=16, scope="wmma.accumulator", strides=[c1, c0]
        )
        with T.sblock("root"):
            T.reads(out[0:16, 0:16], lhs[0:16, 0:16], rhs[0:16, 0:16])
            T.writes(out[0:16, 0:16])
            T.evaluate(
                T.tvm_mma_sync(
                    out.data, _fragment(out, c1), lhs.data, _fragment(lhs, a1), rhs.data, _fragment(rhs, b1), out.data,
                    _fragment(out, c1), dtype="void",
                )
            )  # fmt: skip

    return what, how
