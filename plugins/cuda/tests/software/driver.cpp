// libcuda.so.1 played by the CPU: modules are shared objects made by the script `nvcc` beside this, a block's threads are
// fibers that take turns, from barrier to barrier. What a GPU would refuse or get wrong ends the process with its reason.
//
// Memory of the device has pages of its own, closed to the host while no kernel and no copy runs, with guards around
// them; it begins as NaN, as shared memory does. SOFTWARE_CUDA_ORDER=reverse lets the threads take turns the other way
// round: with the default order, a missing barrier between two threads is met in one of both.
#include <cuda.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector_types.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "software.h"

namespace {
constexpr unsigned WARP = 32, PAGE = 4096, STACK = 256 << 10, UNLESS_ASKED = 48 << 10, LEFT = 1024;
constexpr unsigned char POISON = 0xFF;  // NaN in every float

[[noreturn]] void die(const char* what, const std::string& where) {
  std::fprintf(stderr, "software CUDA: %s (%s)\n", what, where.c_str());
  std::_Exit(70);
}

// ---- memory ----
struct Region {
  size_t size, mapped;
};
std::map<uintptr_t, Region> regions;  // by address of the first byte that the caller has
std::recursive_mutex lock;

uintptr_t page_of(uintptr_t at) { return at / PAGE * PAGE; }

void open_all(bool open) {
  for (auto& [at, region] : regions)
    mprotect(reinterpret_cast<void*>(page_of(at)), region.mapped - 2 * PAGE, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

bool on_device(const void* pointer) {
  auto at = reinterpret_cast<uintptr_t>(pointer);
  auto after = regions.upper_bound(at);
  if (after == regions.begin()) return false;
  auto& [begin, region] = *--after;
  return at < begin + region.size || at == begin;
}

// ---- threads ----
enum State { RUNS, AT_WARP, AT_BLOCK, DONE };
struct Fiber {
  void* stack_pointer;
  State state;
};
std::vector<Fiber> fibers;
char* stacks;
void* scheduler;
unsigned current;
alignas(16) unsigned char slots[1024][16];
const Kernel* running;
void** arguments;
}  // namespace

extern "C" {
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
alignas(1024) unsigned char buf_dyn_shmem_ptr[SHARED + LEFT];

void software_switch(void** save, void* to);
asm(R"(
.globl software_switch
.type software_switch, @function
software_switch:
  push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
  ret
)");

static void leave(State state) {
  fibers[current].state = state;
  software_switch(&fibers[current].stack_pointer, scheduler);
}
void software_wait_for_block() { leave(AT_BLOCK); }
void software_wait_for_warp() { leave(AT_WARP); }
unsigned software_lane() { return current % WARP; }
void* software_slot(unsigned lane) { return slots[current / WARP * WARP + lane % WARP]; }
void software_misaligned(const char* what) { die(what, running->name); }

static void begin() {
  running->call(arguments);
  leave(DONE);
}
}

namespace {
void resume(unsigned thread) {
  current = thread;
  threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / (blockDim.x * blockDim.y)};
  software_switch(&scheduler, fibers[thread].stack_pointer);
}

bool reversed() {
  const char* order = std::getenv("SOFTWARE_CUDA_ORDER");
  return order != nullptr && std::strcmp(order, "reverse") == 0;
}

// Runs the threads of a warp until each is done or waits for the block.
bool run_warp(unsigned first, unsigned end, bool backwards) {
  for (bool again = true; again;) {
    for (unsigned n = 0; n < end - first; ++n) {
      unsigned thread = backwards ? end - 1 - n : first + n;
      if (fibers[thread].state == RUNS) resume(thread);
    }
    again = false;
    for (unsigned thread = first; thread < end; ++thread)
      if (fibers[thread].state == AT_WARP) fibers[thread].state = RUNS, again = true;
  }
  for (unsigned thread = first; thread < end; ++thread)
    if (fibers[thread].state != DONE) return true;
  return false;
}

void run_block(unsigned count, unsigned dynamic, bool backwards) {
  for (unsigned thread = 0; thread < count; ++thread) {
    auto top = reinterpret_cast<void**>(stacks + size_t(thread + 1) * STACK);
    *--top = nullptr;  // keeps the stack at 16 bytes where `begin` begins
    *--top = reinterpret_cast<void*>(begin);
    top -= 6;
    fibers[thread] = {top, RUNS};
  }
  std::memset(buf_dyn_shmem_ptr, POISON, dynamic + LEFT);
  if (running->shared_end > running->shared) std::memset(running->shared, POISON, running->shared_end - running->shared);
  unsigned warps = (count + WARP - 1) / WARP;
  for (bool again = true; again;) {
    again = false;
    for (unsigned n = 0; n < warps; ++n) {
      unsigned first = (backwards ? warps - 1 - n : n) * WARP;
      again |= run_warp(first, std::min(count, first + WARP), backwards);
    }
    for (unsigned thread = 0; thread < count; ++thread)
      if (fibers[thread].state == AT_BLOCK) fibers[thread].state = RUNS;
  }
  for (unsigned n = 0; n < LEFT; ++n)
    if (buf_dyn_shmem_ptr[dynamic + n] != POISON) die("a kernel writes beyond its shared memory", running->name);
}

// Says which kernel it was, on a stack of its own: the fault may be that a fiber's is full.
void fault(int, siginfo_t* about, void*) {
  char where[32];
  std::snprintf(where, sizeof where, " at %p", about->si_addr);
  die(on_device(about->si_addr) ? "a kernel writes to what it may only read" : "a kernel touches what is no memory of the device",
      std::string(running->name) + where);
}

class Watched {
 public:
  Watched() {
    static char memory[1 << 16];
    stack_t other = {memory, 0, sizeof memory};
    sigaltstack(&other, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before_);
  }
  ~Watched() { sigaction(SIGSEGV, &before_, nullptr); }

 private:
  struct sigaction before_;
};

struct Function {
  const Kernel* kernel;
  unsigned most = UNLESS_ASKED;
};
struct Module {
  void* handle;
  std::map<std::string, Function> functions;
};

bool fits(const CUlaunchConfig& given, const Function& function) {
  size_t threads = size_t(given.blockDimX) * given.blockDimY * given.blockDimZ;
  return threads > 0 && threads <= unsigned(function.kernel->threads) && given.blockDimZ <= 64 && given.gridDimX &&
         given.gridDimY && given.gridDimZ && given.gridDimX < 1u << 31 && given.gridDimY < 1u << 16 &&
         given.gridDimZ < 1u << 16 && given.sharedMemBytes <= function.most;
}
}  // namespace

extern "C" {
void* software_allocate(size_t size) {
  std::lock_guard hold(lock);
  size_t inner = (std::max<size_t>(size, 1) + 255) / 256 * 256, pages = (inner + PAGE - 1) / PAGE * PAGE;
  auto mapped = mmap(nullptr, pages + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto at = reinterpret_cast<uintptr_t>(mapped) + PAGE;
  mprotect(reinterpret_cast<void*>(at), pages, PROT_READ | PROT_WRITE);
  std::memset(reinterpret_cast<void*>(at), POISON, pages);
  mprotect(reinterpret_cast<void*>(at), pages, PROT_NONE);
  at += pages - inner;  // the end is where the guard begins
  regions[at] = {size, pages + 2 * PAGE};
  return reinterpret_cast<void*>(at);
}

bool software_free(void* pointer) {
  std::lock_guard hold(lock);
  auto found = regions.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == regions.end()) return false;
  munmap(reinterpret_cast<void*>(page_of(found->first) - PAGE), found->second.mapped);
  regions.erase(found);
  return true;
}

bool software_copy(void* to, const void* from, size_t size, bool to_device, bool from_device) {
  std::lock_guard hold(lock);
  if (on_device(to) != to_device || on_device(from) != from_device) return false;
  open_all(true);
  std::memmove(to, from, size);
  open_all(false);
  return true;
}

CUresult cuModuleLoadData(CUmodule* made, const void* image) {
  std::lock_guard hold(lock);
  auto header = static_cast<const Elf64_Ehdr*>(image);
  if (std::memcmp(image, ELFMAG, SELFMAG)) return CUDA_ERROR_INVALID_IMAGE;
  size_t size = header->e_shoff + size_t(header->e_shnum) * header->e_shentsize;  // its last part
  char path[] = "/tmp/software-cuda-XXXXXX";
  int file = mkstemp(path);
  bool written = file >= 0 && write(file, image, size) == ssize_t(size);
  close(file);
  void* handle = written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  unlink(path);
  if (handle == nullptr) return CUDA_ERROR_INVALID_IMAGE;
  auto module = new Module{handle, {}};
  for (auto kernel = static_cast<const Kernel*>(dlsym(handle, "software_kernels")); kernel->name; ++kernel)
    module->functions[kernel->name] = {kernel};
  *made = reinterpret_cast<CUmodule>(module);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule given) {
  std::lock_guard hold(lock);
  auto module = reinterpret_cast<Module*>(given);
  dlclose(module->handle);
  delete module;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* made, CUmodule given, const char* name) {
  auto& functions = reinterpret_cast<Module*>(given)->functions;
  auto found = functions.find(name);
  if (found == functions.end()) return CUDA_ERROR_NOT_FOUND;
  *made = reinterpret_cast<CUfunction>(&found->second);
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction given, CUfunction_attribute what, int value) {
  auto& function = *reinterpret_cast<Function*>(given);
  auto fixed = function.kernel->shared_end - function.kernel->shared;
  if (what != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value + fixed > long(SHARED)) return CUDA_ERROR_INVALID_VALUE;
  function.most = value;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* given, CUfunction what, void** parameters, void**) {
  std::lock_guard hold(lock);
  auto& function = *reinterpret_cast<Function*>(what);
  if (!fits(*given, function)) return CUDA_ERROR_INVALID_VALUE;
  running = function.kernel;
  arguments = parameters;
  for (unsigned n = 0; running->kinds[n]; ++n)
    if (running->kinds[n] == 'p' && !on_device(*static_cast<void**>(parameters[n])))
      die("a kernel is given an address that is not the device's", running->name);
  gridDim = {given->gridDimX, given->gridDimY, given->gridDimZ};
  blockDim = {given->blockDimX, given->blockDimY, given->blockDimZ};
  unsigned count = blockDim.x * blockDim.y * blockDim.z;
  if (stacks == nullptr) {
    stacks = static_cast<char*>(
        mmap(nullptr, size_t(STACK) * 1024, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    fibers.resize(1024);
  }
  bool backwards = reversed();
  Watched watched;
  open_all(true);
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) run_block(count, given->sharedMemBytes, backwards);
  open_all(false);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::snprintf(name, size, "software");
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult code, const char** name) {
  static thread_local std::string text;
  text = "CUresult " + std::to_string(code);
  *name = text.c_str();
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult code, const char** text) { return cuGetErrorName(code, text); }
CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                                const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
}
