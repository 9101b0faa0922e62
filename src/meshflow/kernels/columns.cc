#include "columns.h"

#define LOOPS "columns_loops.h"
#include "every_width.h"

namespace meshflow {

#if VECTORS
bool suits(const Columns& s) { return has(Level::kAvx2) && s.rows > 0 && s.columns > 0; }
size_t scratch_bytes(const Columns& s) { return BY_WIDTH(scratch_bytes(s)); }
void sum(const Columns& s, const void* x, const void* y, void* result, char* scratch, int threads) {
  BY_WIDTH(sum(s, x, y, result, scratch, threads));
}
#else
bool suits(const Columns&) { return false; }
size_t scratch_bytes(const Columns&) { return 0; }
void sum(const Columns&, const void*, const void*, void*, char*, int) {}
#endif

}  // namespace meshflow
