// In front of the C library: while `refuses` is set, no thread but the first gets any memory.
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <unistd.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

volatile int refuses = 0;

static int is_refused(void) {
  if (!refuses || gettid() == getpid()) return 0;
  errno = ENOMEM;
  return 1;
}

void* malloc(size_t size) { return is_refused() ? NULL : __libc_malloc(size); }

void* calloc(size_t count, size_t size) {
  return is_refused() ? NULL : __libc_calloc(count, size);
}

void* realloc(void* held, size_t size) { return is_refused() ? NULL : __libc_realloc(held, size); }

void* memalign(size_t alignment, size_t size) {
  return is_refused() ? NULL : __libc_memalign(alignment, size);
}

void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void** out, size_t alignment, size_t size) {
  *out = memalign(alignment, size);
  return *out ? 0 : ENOMEM;
}
