// CUDA's <mma.h> for g++: the fragments of a warp are kept, and multiplied, by its first thread alone.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace nvcuda::wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}  // namespace precision

template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment;
template <int M, int N, int K, typename T, typename Layout>
struct fragment<matrix_a, M, N, K, T, Layout> {
  float at[M][K];
};
template <int M, int N, int K, typename T, typename Layout>
struct fragment<matrix_b, M, N, K, T, Layout> {
  float at[K][N];
};
template <int M, int N, int K>
struct fragment<accumulator, M, N, K, float> {
  float at[M][N];
};

inline float software_operand(float x, precision::tf32) {  // tensor cores look at 10 bits of the mantissa
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits &= ~0x1FFFu;
  std::memcpy(&x, &bits, 4);
  return x;
}
template <typename T>
float software_operand(T x, T) { return float(x); }

// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#wmma: 256 bits for pointers; rows of 16 bytes
template <typename T>
void software_require(const T* from, unsigned stride) {
  if (reinterpret_cast<uintptr_t>(from) % 32) software_misaligned("a tile of tensor cores does not lie at 32 bytes");
  if (stride * sizeof(T) % 16) software_misaligned("rows of a tile of tensor cores do not lie at 16 bytes");
}

template <int M, int N, int K, typename T, typename S>
void load_matrix_sync(fragment<matrix_a, M, N, K, T, row_major>& a, const S* from, unsigned stride) {
  software_require(from, stride);
  if (software_lane()) return;
  for (int i = 0; i < M; ++i)
    for (int k = 0; k < K; ++k) a.at[i][k] = software_operand(from[i * stride + k], T());
}
template <int M, int N, int K, typename T, typename S>
void load_matrix_sync(fragment<matrix_b, M, N, K, T, col_major>& b, const S* from, unsigned stride) {
  software_require(from, stride);
  if (software_lane()) return;
  for (int j = 0; j < N; ++j)
    for (int k = 0; k < K; ++k) b.at[k][j] = software_operand(from[j * stride + k], T());
}
template <int M, int N, int K>
void fill_fragment(fragment<accumulator, M, N, K, float>& c, float value) {
  if (software_lane()) return;
  std::fill_n(&c.at[0][0], M * N, value);
}
template <int M, int N, int K, typename T>
void mma_sync(fragment<accumulator, M, N, K, float>& d, const fragment<matrix_a, M, N, K, T, row_major>& a,
              const fragment<matrix_b, M, N, K, T, col_major>& b, const fragment<accumulator, M, N, K, float>& c) {
  if (software_lane()) return;
  auto sum = c;
  for (int i = 0; i < M; ++i)
    for (int k = 0; k < K; ++k)
      for (int j = 0; j < N; ++j) sum.at[i][j] += a.at[i][k] * b.at[k][j];
  d = sum;
}
template <int M, int N, int K>
void store_matrix_sync(float* to, const fragment<accumulator, M, N, K, float>& c, unsigned stride, layout_t layout) {
  software_require(to, stride);
  if (software_lane()) return;
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j) (layout == mem_row_major ? to[i * stride + j] : to[j * stride + i]) = c.at[i][j];
}
}  // namespace nvcuda::wmma
