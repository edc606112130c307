"""CUDA's WMMA instructions as tensor intrinsics of TVM: tiles of 16x16x16, operands of 16 bits, sums in float32.

TVM's own (`tvm.s_tir.tensor_intrin`) are the same without bfloat16, but their import parses the intrinsics of every
target, which takes a minute. Annotations must not be lazy here, because TVM's parser reads the source of these
functions.

Operands in float32 are read as TF32, in tiles of 16x16x8, for which TVM 0.27 declares no fragments. Here their
fragments are of bfloat16, which has no tiles of that shape, and `with_tf32` corrects them in CUDA's source.
"""

# mypy: disable-error-code="untyped-decorator"

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

TILE = 16
_SHARED = "shared.dyn"
_POSTPROC = "tvm_callback_cuda_postproc"
_FRAGMENT = re.compile(r"(nvcuda::wmma::fragment<nvcuda::wmma::matrix_[ab], 16, 16, 8, )\w+")


@dataclass(frozen=True)
class Intrinsics:
    """The names of intrinsics for `Schedule.tensorize`; the right operand is (columns, summed).

    Args:
        summed: number of products that one instruction sums up.
        fragment: dtype in the declaration of the operands' fragments.
    """

    load_a: str
    load_b: str
    fill: str
    multiply: str
    store: str
    summed: int
    fragment: str


@cache
def intrinsics(dtype: str) -> Intrinsics:
    """Register the instructions for operands of "float16", "bfloat16", or "float32" as TF32."""
    summed, fragment = (8, "bfloat16") if dtype == "float32" else (TILE, dtype)
    names = {n: f"delegate_wmma_{n}_{dtype}" for n in ("load_a", "load_b", "fill", "multiply", "store")}
    result = Intrinsics(**names, summed=summed, fragment=fragment)
    TensorIntrin.register(result.load_a, *_load(dtype, result, "wmma.matrix_a", "row_major"))
    TensorIntrin.register(result.load_b, *_load(dtype, result, "wmma.matrix_b", "col_major"))
    TensorIntrin.register(result.fill, *_fill(summed))
    TensorIntrin.register(result.multiply, *_multiply(fragment, summed))
    TensorIntrin.register(result.store, *_store(summed))
    return result


@contextmanager
def with_tf32() -> Iterator[None]:
    """Return a context in which TVM's CUDA sources have fragments of TF32."""
    import tvm_ffi

    before = tvm_ffi.get_global_func(_POSTPROC, allow_missing=True)
    tvm_ffi.register_global_func(_POSTPROC, _correct, override=True)
    try:
        yield
    finally:
        tvm_ffi.registry.remove_global_func(_POSTPROC)
        if before is not None:
            tvm_ffi.register_global_func(_POSTPROC, before)


def _correct(source: str, target: Any) -> str:
    del target
    return _FRAGMENT.sub(r"\1nvcuda::wmma::precision::tf32", source)


def _fragment(buffer: Any, stride: Any, columns: int = TILE) -> Any:
    """Return the number of a tile within the fragments of a warp."""
    return buffer.elem_offset // stride // TILE * (stride // columns) + buffer.elem_offset % stride // columns


def _load(dtype: str, names: Intrinsics, scope: str, layout: str) -> tuple[Any, Any]:
    k, fragment = names.summed, names.fragment

    @T.prim_func(s_tir=True)
    def what(a: T.handle, c: T.handle) -> None:
        lhs = T.match_buffer(a, (16, k), dtype, align=64, offset_factor=k, scope=_SHARED)
        out = T.match_buffer(c, (16, k), fragment, align=64, offset_factor=k, scope=scope)
        with T.sblock("root"):
            T.reads(lhs[0:16, 0:k])
            T.writes(out[0:16, 0:k])
            for i, j in T.grid(16, k):
                with T.sblock("load"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    out[vi, vj] = lhs[vi, vj].astype(fragment)

    @T.prim_func(s_tir=True)
    def how(a: T.handle, c: T.handle) -> None:
        s1, s0, d1, d0 = T.int32(), T.int32(), T.int32(), T.int32()
        lhs = T.match_buffer(a, (16, k), dtype, align=64, offset_factor=k, scope=_SHARED, strides=[s1, s0])
        out = T.match_buffer(c, (16, k), fragment, align=64, offset_factor=k, scope=scope, strides=[d1, d0])
        with T.sblock("root"):
            T.reads(lhs[0:16, 0:k])
            T.writes(out[0:16, 0:k])
            T.evaluate(
                T.tvm_load_matrix_sync(
                    out.data,
                    16,
                    16,
                    k,
                    _fragment(out, d1, k),
                    lhs.access_ptr("r", ptr_type=dtype),
                    s1,
                    layout,
                    dtype="void",
                )
            )

    return what, how


def _fill(k: int) -> tuple[Any, Any]:
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
            T.evaluate(T.tvm_fill_fragment(out.data, 16, 16, k, _fragment(out, d1), T.float32(0), dtype="void"))

    return what, how


def _store(k: int) -> tuple[Any, Any]:
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
                    lhs.data, 16, 16, k, _fragment(lhs, d1), out.access_ptr("w", ptr_type="float32"), s1, "row_major",
                    dtype="void",
                )
            )  # fmt: skip

    return what, how


def _multiply(dtype: str, k: int) -> tuple[Any, Any]:
    @T.prim_func(s_tir=True)
    def what(a: T.handle, b: T.handle, c: T.handle) -> None:
        lhs = T.match_buffer(a, (16, k), dtype, align=64, offset_factor=k, scope="wmma.matrix_a")
        rhs = T.match_buffer(b, (16, k), dtype, align=64, offset_factor=k, scope="wmma.matrix_b")
        out = T.match_buffer(c, (16, 16), "float32", align=64, offset_factor=16, scope="wmma.accumulator")
        with T.sblock("root"):
            T.reads(out[0:16, 0:16], lhs[0:16, 0:k], rhs[0:16, 0:k])
            T.writes(out[0:16, 0:16])
            for i, j, n in T.grid(16, 16, k):
                with T.sblock(""):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, n])
                    out[vi, vj] = out[vi, vj] + T.Cast("float32", lhs[vi, vk]) * T.Cast("float32", rhs[vj, vk])

    @T.prim_func(s_tir=True)
    def how(a: T.handle, b: T.handle, c: T.handle) -> None:
        a1, a0, b1, b0, c1, c0 = T.int32(), T.int32(), T.int32(), T.int32(), T.int32(), T.int32()
        lhs = T.match_buffer(a, (16, k), dtype, align=64, offset_factor=k, scope="wmma.matrix_a", strides=[a1, a0])
        rhs = T.match_buffer(b, (16, k), dtype, align=64, offset_factor=k, scope="wmma.matrix_b", strides=[b1, b0])
        out = T.match_buffer(
            c, (16, 16), "float32", align=64, offset_factor=16, scope="wmma.accumulator", strides=[c1, c0]
        )
        with T.sblock("root"):
            T.reads(out[0:16, 0:16], lhs[0:16, 0:k], rhs[0:16, 0:k])
            T.writes(out[0:16, 0:16])
            T.evaluate(
                T.tvm_mma_sync(
                    out.data, _fragment(out, c1), lhs.data, _fragment(lhs, a1, k), rhs.data, _fragment(rhs, b1, k),
                    out.data, _fragment(out, c1), dtype="void",
                )
            )  # fmt: skip

    return what, how
