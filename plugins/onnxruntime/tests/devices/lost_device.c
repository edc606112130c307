/* A Vulkan layer that takes the device away: while the file $LOST_DEVICE exists, what is submitted or waited for fails
 * with VK_ERROR_DEVICE_LOST, and no device can be made. It knows the loader's interface alone, so that it compiles
 * without headers of Vulkan: https://github.com/KhronosGroup/Vulkan-Loader/blob/main/docs/LoaderLayerInterface.md
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INITIALIZATION_FAILED = -3, DEVICE_LOST = -4 };
enum { INSTANCE_INFO = 47, DEVICE_INFO = 48, LINK_INFO = 0 }; /* VK_STRUCTURE_TYPE_LOADER_*_CREATE_INFO, VK_LAYER_LINK_INFO */

typedef void (*Function)(void);
typedef Function (*Get)(void *, const char *);

typedef struct Link { /* VkLayerInstanceLink and VkLayerDeviceLink begin alike */
  struct Link *next;
  Get instance, device;
} Link;

typedef struct Chain { /* VkInstanceCreateInfo, VkDeviceCreateInfo and the loader's structures behind them begin alike */
  int32_t type;
  struct Chain *next;
  int32_t function; /* of the loader's alone, as `link` */
  Link *link;
} Chain;

typedef int32_t (*Submit)(void *, uint32_t, const void *, uint64_t);
typedef int32_t (*Wait)(void *, uint32_t, const uint64_t *, uint32_t, uint64_t);
typedef int32_t (*CreateInstance)(const Chain *, const void *, void **);
typedef int32_t (*CreateDevice)(void *, const Chain *, const void *, void **);

static void *last_instance; /* the layer below is the same for all instances and devices */
static Get next_instance, next_device;
static Submit next_submit, next_submit2;
static Wait next_wait;

static int lost(void) {
  const char *path = getenv("LOST_DEVICE");
  return path && access(path, F_OK) == 0;
}

static int32_t submit(void *queue, uint32_t count, const void *submits, uint64_t fence) {
  return lost() ? DEVICE_LOST : next_submit(queue, count, submits, fence);
}

static int32_t submit2(void *queue, uint32_t count, const void *submits, uint64_t fence) {
  return lost() ? DEVICE_LOST : next_submit2(queue, count, submits, fence);
}

static int32_t wait_for(void *device, uint32_t count, const uint64_t *fences, uint32_t all, uint64_t timeout) {
  return lost() ? DEVICE_LOST : next_wait(device, count, fences, all, timeout);
}

static Link *take_link(const Chain *info, int32_t type) {
  for (Chain *c = info->next; c; c = c->next)
    if (c->type == type && c->function == LINK_INFO) {
      Link *link = c->link;
      c->link = link->next; /* for the layer below */
      return link;
    }
  return NULL;
}

static int32_t create_instance(const Chain *info, const void *allocator, void **instance) {
  Link *link = take_link(info, INSTANCE_INFO);
  if (!link) return INITIALIZATION_FAILED;
  next_instance = link->instance;
  int32_t result = ((CreateInstance)next_instance(NULL, "vkCreateInstance"))(info, allocator, instance);
  if (result == SUCCESS) last_instance = *instance;
  return result;
}

static int32_t create_device(void *adapter, const Chain *info, const void *allocator, void **device) {
  Link *link = take_link(info, DEVICE_INFO);
  if (!link || lost()) return link ? DEVICE_LOST : INITIALIZATION_FAILED;
  next_device = link->device;
  int32_t result = ((CreateDevice)link->instance(last_instance, "vkCreateDevice"))(adapter, info, allocator, device);
  if (result != SUCCESS) return result;
  next_submit = (Submit)next_device(*device, "vkQueueSubmit");
  next_submit2 = (Submit)next_device(*device, "vkQueueSubmit2");
  next_wait = (Wait)next_device(*device, "vkWaitForFences");
  return SUCCESS;
}

Function vkGetInstanceProcAddr(void *instance, const char *name);
Function vkGetDeviceProcAddr(void *device, const char *name);

static const struct {
  const char *name;
  Function function;
  int of_device;
} OWN[] = {
    {"vkGetInstanceProcAddr", (Function)vkGetInstanceProcAddr, 0},
    {"vkGetDeviceProcAddr", (Function)vkGetDeviceProcAddr, 1},
    {"vkCreateInstance", (Function)create_instance, 0},
    {"vkCreateDevice", (Function)create_device, 0},
    {"vkQueueSubmit", (Function)submit, 1},
    {"vkQueueSubmit2", (Function)submit2, 1},
    {"vkWaitForFences", (Function)wait_for, 1},
};

static Function own(const char *name, int of_device) {
  for (unsigned i = 0; i < sizeof OWN / sizeof *OWN; i++)
    if (!strcmp(name, OWN[i].name) && OWN[i].of_device >= of_device) return OWN[i].function;
  return NULL;
}

Function vkGetInstanceProcAddr(void *instance, const char *name) {
  Function found = own(name, 0);
  return found || !instance ? found : next_instance(instance, name);
}

Function vkGetDeviceProcAddr(void *device, const char *name) {
  Function below = next_device(device, name), found = own(name, 1);
  return below && found ? found : below;
}
