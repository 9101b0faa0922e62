// Huge pages behind XLA's buffers.
//
// XLA takes every buffer of a step from posix_memalign and gives it back afterwards, so each step
// touches fresh memory 4 KiB at a time: tens of thousands of page faults. Kernels that leave huge
// pages to "madvise" (the usual setting) grant them to whoever asks, and neither XLA nor glibc does.
// XLA's library calls posix_memalign through its table of imported functions; the entry is changed
// to one that asks.

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "worker.h"

namespace {

constexpr size_t kPage = 2 << 20;

// What is returned is glibc's memory, so that whoever frees it needs to know nothing.
int allocate(void** memory, size_t alignment, size_t size) {
  if (size < 2 * kPage) return posix_memalign(memory, alignment, size);
  int failed = posix_memalign(memory, alignment < kPage ? kPage : alignment, size);
  if (!failed) meshflow::huge_pages(*memory, size);
  return failed;
}

// The place in a loaded library where it keeps the address of a function that it imports.
void** imported(const link_map* library, const char* function) {
  const ElfW(Rela)* calls = nullptr;
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  size_t bytes = 0;
  for (const ElfW(Dyn)* entry = library->l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_JMPREL) calls = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_PLTRELSZ) bytes = entry->d_un.d_val;
  }
  if (!calls || !symbols || !names) return nullptr;
  for (size_t i = 0; i < bytes / sizeof(*calls); ++i) {
    const ElfW(Sym)& symbol = symbols[ELF64_R_SYM(calls[i].r_info)];
    if (std::strcmp(names + symbol.st_name, function) == 0)
      return reinterpret_cast<void**>(library->l_addr + calls[i].r_offset);
  }
  return nullptr;
}

}  // namespace

// Makes a loaded library ask for huge pages; 0 when it does from now on.
extern "C" int meshflow_huge_pages(const char* path) {
  void* handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (!handle) return 1;
  link_map* library = nullptr;
  void** place = dlinfo(handle, RTLD_DI_LINKMAP, &library) ? nullptr : imported(library, "posix_memalign");
  dlclose(handle);
  if (!place) return 1;
  // The table may have been made read-only after it was filled.
  uintptr_t size = sysconf(_SC_PAGESIZE), start = reinterpret_cast<uintptr_t>(place) / size * size;
  if (mprotect(reinterpret_cast<void*>(start), size, PROT_READ | PROT_WRITE)) return 1;
  __atomic_store_n(place, reinterpret_cast<void*>(&allocate), __ATOMIC_RELEASE);
  return 0;
}
