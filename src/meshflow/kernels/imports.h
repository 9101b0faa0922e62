// Functions that loaded libraries import, and their replacement by ours.

#pragma once

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace meshflow {

// Returns a library that is loaded from this file, or null.
inline const link_map* find_loaded(const char* path) {
  void* handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (!handle) return nullptr;
  link_map* library = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &library)) library = nullptr;
  dlclose(handle);
  return library;
}

// Returns the address of the table entry of a function that a loaded library imports.
inline void** imported(const link_map* library, const char* function) {
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

// Replaces a function that a library imports; returns whether it succeeded.
inline bool replace_import(const link_map* library, const char* function, void* ours) {
  void** place = imported(library, function);
  if (!place) return false;
  // The table may have been made read-only after it was filled.
  uintptr_t size = sysconf(_SC_PAGESIZE), start = reinterpret_cast<uintptr_t>(place) / size * size;
  if (mprotect(reinterpret_cast<void*>(start), size, PROT_READ | PROT_WRITE)) return false;
  __atomic_store_n(place, ours, __ATOMIC_RELEASE);
  return true;
}

}  // namespace meshflow
