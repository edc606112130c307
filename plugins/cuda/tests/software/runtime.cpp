// libcudart.so.13 played by the CPU: one device, on which everything has happened when a call returns.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

#include "software.h"

namespace {
constexpr size_t MEMORY = size_t(64) << 30;
cudaError_t last = cudaSuccess;

cudaError_t says(cudaError_t code) {
  if (code != cudaSuccess) last = code;
  return code;
}

const char* named(cudaError_t code) {
  static thread_local std::string text;
  text = "cudaError " + std::to_string(code);
  return text.c_str();
}

using Clock = std::chrono::steady_clock;
Clock::time_point& time_of(cudaEvent_t event) { return *reinterpret_cast<Clock::time_point*>(event); }
}  // namespace

extern "C" {
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return says(device ? cudaErrorInvalidDevice : cudaSuccess); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* of, int) {
  std::memset(of, 0, sizeof *of);
  std::strcpy(of->name, "software");
  of->major = 9, of->totalGlobalMem = MEMORY;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int) {
  switch (what) {
    case cudaDevAttrComputeCapabilityMajor: return *value = 9, cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: return *value = 0, cudaSuccess;
    case cudaDevAttrWarpSize: return *value = 32, cudaSuccess;
    case cudaDevAttrMultiProcessorCount: return *value = 1, cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY:
      return *value = 1024, cudaSuccess;
    case cudaDevAttrMaxBlockDimZ: return *value = 64, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock: return *value = 48 << 10, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return *value = SHARED, cudaSuccess;
    default: return *value = 0, cudaSuccess;
  }
}
cudaError_t cudaMalloc(void** made, size_t size) {
  *made = software_allocate(size);
  return says(*made ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* pointer) {
  return says(pointer == nullptr || software_free(pointer) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void** made, size_t size) { return *made = std::aligned_alloc(256, (size + 255) / 256 * 256), cudaSuccess; }
cudaError_t cudaFreeHost(void* pointer) { return std::free(pointer), cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) { return *free = *total = MEMORY, cudaSuccess; }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t) {
  bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return says(software_copy(to, from, size, to_device, from_device) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t) {
  return says(software_copy(to, from, size, true, true) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaGetLastError() {
  auto code = last;
  last = cudaSuccess;
  return code;
}
cudaError_t cudaPeekAtLastError() { return last; }
const char* cudaGetErrorName(cudaError_t code) { return named(code); }
const char* cudaGetErrorString(cudaError_t code) { return named(code); }

cudaError_t cudaStreamCreate(cudaStream_t* made) { return *made = nullptr, cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned) { return *made = nullptr, cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* made) { return *made = reinterpret_cast<cudaEvent_t>(new Clock::time_point), cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete &time_of(event), cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) { return time_of(event) = Clock::now(), cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  return *ms = std::chrono::duration<float, std::milli>(time_of(to) - time_of(from)).count(), cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return says(cudaErrorNotSupported); }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) { return says(cudaErrorNotSupported); }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long) { return says(cudaErrorNotSupported); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return says(cudaErrorNotSupported); }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
}
