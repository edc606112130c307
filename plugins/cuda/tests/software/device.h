// What nvcc gives to a kernel's source, for g++: indices, barriers, shuffles, shared memory, and functions of floats.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector_functions.h>
#include <vector_types.h>

#undef __shared__
#undef __launch_bounds__
#define __shared__ static __attribute__((section("cuda_shared")))
#define __launch_bounds__(...)

extern "C" {
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
extern unsigned char buf_dyn_shmem_ptr[];  // TVM's name of the dynamic shared memory
void software_wait_for_block();
void software_wait_for_warp();
unsigned software_lane();
void* software_slot(unsigned lane);  // 16 bytes for each thread of the warp
void software_misaligned(const char* what);
}

inline void __syncthreads() { software_wait_for_block(); }
inline void __syncwarp(unsigned = ~0u) { software_wait_for_warp(); }
inline unsigned __activemask() { return ~0u; }

template <typename T>
T software_from(T mine, unsigned source) {
  static_assert(sizeof(T) <= 16);
  std::memcpy(software_slot(software_lane()), &mine, sizeof(T));
  software_wait_for_warp();
  T its;
  std::memcpy(&its, software_slot(source), sizeof(T));
  software_wait_for_warp();
  return its;
}

template <typename T>
T __shfl_sync(unsigned, T mine, int lane, int width) {
  return software_from(mine, software_lane() / width * width + lane % width);
}
template <typename T>
T __shfl_down_sync(unsigned, T mine, int offset, int width) {
  unsigned lane = software_lane();
  return software_from(mine, int(lane % width) + offset < width ? lane + offset : lane);
}
template <typename T>
T __shfl_up_sync(unsigned, T mine, int offset, int width) {
  unsigned lane = software_lane();
  return software_from(mine, int(lane % width) >= offset ? lane - offset : lane);
}
template <typename T>
T __shfl_xor_sync(unsigned, T mine, int bits, int) {
  return software_from(mine, software_lane() ^ bits);
}

template <typename T>
T __ldg(const T* at) { return *at; }
inline float __int_as_float(int bits) {
  float made;
  std::memcpy(&made, &bits, sizeof made);
  return made;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline float min(float a, float b) { return std::fmin(a, b); }
inline int max(int a, int b) { return a < b ? b : a; }
inline int min(int a, int b) { return b < a ? b : a; }
inline int64_t max(int64_t a, int64_t b) { return a < b ? b : a; }
inline int64_t min(int64_t a, int64_t b) { return b < a ? b : a; }
inline int64_t max(int64_t a, long long b) { return a < b ? b : a; }
inline int64_t min(int64_t a, long long b) { return b < a ? b : a; }
