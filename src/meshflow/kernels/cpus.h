// How a loop is compiled for several processors.

#pragma once

// The first alternative the processor has is chosen when the library is loaded.
#define FOR_EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
