/* The functions of the CUDA driver that tpx calls, over "device" memory that is malloc's.

   Strict where the driver is: there must be a current context, a handle must be one that fake_export made, a copy
   must stay within one allocation, and what is copied to the device arrives there only once the default stream
   is waited for. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, LAST = 999 };
enum { DEVICES = 2, DEPTH = 8, ALLOCATIONS = 64, PENDING = 8 };

typedef struct { char reserved[64]; } Handle;
typedef struct { uint64_t base; size_t size; int device; } Allocation;
typedef struct { uint64_t target; void *data; size_t size; } Copy;

static int initialised, devices = DEVICES, depth, allocated, pending, opened, retained[DEVICES];
static void *stack[DEPTH];
static char contexts[DEVICES];
static Allocation allocations[ALLOCATIONS];
static Copy copies[PENDING];
static unsigned last_flags;

static int current(void) { return depth ? (int)((char *)stack[depth - 1] - contexts) : -1; }

static Allocation *within(uint64_t address, size_t size) {
  for (int i = 0; i < allocated; i++) {
    Allocation *a = &allocations[i];
    if (a->device == current() && address >= a->base && address + size <= a->base + a->size) return a;
  }
  return NULL;
}

int cuInit(unsigned flags) {
  if (flags || !devices) return flags ? INVALID_VALUE : NO_DEVICE;
  initialised = 1;
  return SUCCESS;
}

int cuGetErrorName(int code, const char **name) {
  *name = code == NO_DEVICE         ? "CUDA_ERROR_NO_DEVICE"
          : code == INVALID_DEVICE  ? "CUDA_ERROR_INVALID_DEVICE"
          : code == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT"
          : code == INVALID_VALUE   ? "CUDA_ERROR_INVALID_VALUE"
                                    : NULL;
  return *name ? SUCCESS : INVALID_VALUE;
}

int cuDeviceGet(int *device, int ordinal) {
  if (!initialised) return INVALID_CONTEXT;
  if (ordinal < 0 || ordinal >= devices) return INVALID_DEVICE;
  *device = ordinal;
  return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  retained[device]++;
  *context = &contexts[device];
  return SUCCESS;
}

int cuCtxPushCurrent_v2(void *context) {
  if (depth == DEPTH) return INVALID_CONTEXT;
  stack[depth++] = context;
  return SUCCESS;
}

int cuCtxPopCurrent_v2(void **context) {
  if (!depth) return INVALID_CONTEXT;
  *context = stack[--depth];
  return SUCCESS;
}

int cuIpcOpenMemHandle_v2(uint64_t *address, Handle handle, unsigned flags) {
  if (current() < 0) return INVALID_CONTEXT;
  last_flags = flags;
  uint64_t exported;
  memcpy(&exported, handle.reserved, sizeof exported);
  for (size_t i = sizeof exported; i < sizeof handle.reserved; i++)
    if (handle.reserved[i] != (char)i) return INVALID_VALUE;
  if (!within(exported, 1)) return INVALID_VALUE;
  opened++;
  *address = exported;
  return SUCCESS;
}

int cuIpcCloseMemHandle(uint64_t address) {
  if (current() < 0) return INVALID_CONTEXT;
  if (!within(address, 1) || !opened) return INVALID_VALUE;
  opened--;
  return SUCCESS;
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address) {
  Allocation *a = within(address, 1);
  if (!a) return INVALID_VALUE;
  *base = a->base;
  *size = a->size;
  return SUCCESS;
}

int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t size) {
  if (!within(source, size)) return current() < 0 ? INVALID_CONTEXT : INVALID_VALUE;
  memcpy(target, (void *)source, size);
  return SUCCESS;
}

int cuMemcpyHtoD_v2(uint64_t target, const void *source, size_t size) {
  if (!within(target, size) || pending == PENDING) return current() < 0 ? INVALID_CONTEXT : INVALID_VALUE;
  Copy *copy = &copies[pending++];
  copy->target = target;
  copy->size = size;
  copy->data = memcpy(malloc(size), source, size);
  return SUCCESS;
}

int cuStreamSynchronize(void *stream) {
  if (current() < 0 || stream) return stream ? INVALID_VALUE : INVALID_CONTEXT;
  for (int i = 0; i < pending; i++) {
    memcpy((void *)copies[i].target, copies[i].data, copies[i].size);
    free(copies[i].data);
  }
  pending = 0;
  return SUCCESS;
}

/* for the test: what another process would do, and what is left */

static Allocation *free_slot(void) {
  for (int i = 0; i < allocated; i++)
    if (!allocations[i].base) return &allocations[i];
  return allocated < ALLOCATIONS ? &allocations[allocated++] : NULL;
}

uint64_t fake_allocate(int device, size_t size) {
  Allocation *a = free_slot();
  a->base = (uint64_t)calloc(1, size);
  a->size = size;
  a->device = device;
  return a->base;
}

void fake_export(uint64_t address, char *handle) {
  memcpy(handle, &address, sizeof address);
  for (size_t i = sizeof address; i < 64; i++) handle[i] = (char)i;
}

int cuMemAlloc_v2(uint64_t *address, size_t size) {
  if (current() < 0) return INVALID_CONTEXT;
  if (!size || size > (size_t)1 << 30) return size ? OUT_OF_MEMORY : INVALID_VALUE;
  *address = fake_allocate(current(), size);
  return SUCCESS;
}

int cuMemFree_v2(uint64_t address) {
  if (current() < 0) return INVALID_CONTEXT;
  Allocation *a = within(address, 1);
  if (!a || a->base != address) return INVALID_VALUE;
  free((void *)a->base);
  memset(a, 0, sizeof *a);
  return SUCCESS;
}

int cuIpcGetMemHandle(Handle *handle, uint64_t address) {
  if (!within(address, 1)) return current() < 0 ? INVALID_CONTEXT : INVALID_VALUE;
  fake_export(address, handle->reserved);
  return SUCCESS;
}

int fake_live(void) {
  int live = 0;
  for (int i = 0; i < allocated; i++) live += allocations[i].base != 0;
  return live;
}

void fake_have(int count) { devices = count; }
int fake_opened(void) { return opened; }
int fake_depth(void) { return depth; }
int fake_retained(int device) { return retained[device]; }
unsigned fake_flags(void) { return last_flags; }
