/* The driver of the tests of CUDA shared memory, and of what a backend needs beside: memory, streams, properties.

   What is copied back from the device arrives in the host's memory only with cuStreamSynchronize. */

/* memory that runs out, and addresses that are not given again, are this file's own */
#define cuMemAlloc_v2 plain_cuMemAlloc_v2
#define cuMemFree_v2 plain_cuMemFree_v2
#define cuStreamSynchronize plain_cuStreamSynchronize
#include "../../shared_memory/fake_libcuda.c"
#undef cuMemAlloc_v2
#undef cuMemFree_v2
#undef cuStreamSynchronize

enum { STREAMS = 8, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 };

typedef struct { void *target; uint64_t source; size_t size; } Return;

static Return returns[PENDING];
static int returning, streams, priorities[STREAMS];
static size_t memory_left = (size_t)1 << 30;

int cuDeviceGetCount(int *count) {
  *count = devices;
  return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (attribute != CAPABILITY_MAJOR && attribute != CAPABILITY_MINOR) return INVALID_VALUE;
  *value = attribute == CAPABILITY_MAJOR ? 9 : device;
  return SUCCESS;
}

int cuMemAlloc_v2(uint64_t *address, size_t size) {
  if (current() < 0) return INVALID_CONTEXT;
  if (!size) return INVALID_VALUE;
  if (size > memory_left) return OUT_OF_MEMORY;
  *address = fake_allocate(current(), size);
  return SUCCESS;
}

int cuMemFree_v2(uint64_t address) {
  Allocation *a = within(address, 1);
  if (!a || a->base != address) return INVALID_VALUE;
  free((void *)address);
  memset(a, 0, sizeof *a);
  a->device = -2;
  return SUCCESS;
}

int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return current() < 0 ? INVALID_CONTEXT : SUCCESS;
}

int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
  if (current() < 0) return INVALID_CONTEXT;
  if (flags != 1 || streams == STREAMS) return INVALID_VALUE;
  priorities[streams] = priority;
  *stream = &priorities[streams++];
  return SUCCESS;
}

int cuStreamDestroy_v2(void *stream) {
  if (!stream) return INVALID_VALUE;
  streams--;
  return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t size, void *stream) {
  if (!stream || !within(target, size)) return current() < 0 ? INVALID_CONTEXT : INVALID_VALUE;
  memcpy((void *)target, source, size);
  return SUCCESS;
}

int cuMemcpyDtoHAsync_v2(void *target, uint64_t source, size_t size, void *stream) {
  if (!stream || !within(source, size) || returning == PENDING) return current() < 0 ? INVALID_CONTEXT : INVALID_VALUE;
  Return *back = &returns[returning++];
  back->target = target;
  back->source = source;
  back->size = size;
  return SUCCESS;
}

int cuStreamSynchronize(void *stream) {
  if (!stream) return INVALID_VALUE;
  for (int i = 0; i < returning; i++) memcpy(returns[i].target, (void *)returns[i].source, returns[i].size);
  returning = 0;
  return SUCCESS;
}

/* for the test */

int fake_streams(void) { return streams; }
int fake_priority(void) { return priorities[0]; }
void fake_memory(size_t left) { memory_left = left; }

int fake_allocations(void) {
  int count = 0;
  for (int i = 0; i < allocated; i++) count += allocations[i].base != 0;
  return count;
}
