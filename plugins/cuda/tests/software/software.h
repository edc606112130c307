// What the parts of the software GPU know of each other.
#pragma once
#include <cstddef>

constexpr unsigned SHARED = 227 << 10;  // bytes that a block may have at most on sm_90

struct Kernel {
  const char* name;
  void (*call)(void**);
  int threads;        // __launch_bounds__
  const char* kinds;  // of its parameters: p a pointer, v a value
  char *shared, *shared_end;
};

extern "C" {
void* software_allocate(size_t size);
bool software_free(void* pointer);
bool software_copy(void* to, const void* from, size_t size, bool to_device, bool from_device);
}
