#include "tile_products.h"

#include <new>
#include <type_traits>

#if !defined(MESHFLOW_PORTABLE) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11

#include "amx_tiles.h"

namespace meshflow {
namespace {

template <typename Tiles, int vectors>
void multiply_block(const char* a, int64_t a_row, const char* b, int64_t b_row, int64_t depth, char* c, int64_t c_row, bool add) {
  // Calls use(tile of sums) with constants.
  auto for_sums = [](auto use) __attribute__((always_inline)) {
    use(std::integral_constant<int, 0>());
    if constexpr (vectors > 1) use(std::integral_constant<int, 1>());
    if constexpr (vectors > 2) use(std::integral_constant<int, 2>());
    if constexpr (vectors > 3) use(std::integral_constant<int, 3>());
  };
  for_sums([&](auto v) __attribute__((always_inline)) {
    if (add) Tiles::template load<v>(c + v * 64, c_row);
    else Tiles::template zero<v>();
  });
  for (int64_t p = 0; p < depth; p += kTileSide, a += 64, b += kTileSide * b_row) {
    Tiles::template load<7>(a, a_row);
    for_sums([&](auto v) __attribute__((always_inline)) {
      // Two tiles in turns, so that one is loaded while the other is multiplied.
      Tiles::template load<5 + v % 2>(b + v * 64, b_row);
      Tiles::template multiply<v, 7, 5 + v % 2>();
    });
  }
  for_sums([&](auto v) __attribute__((always_inline)) { Tiles::template store<v>(c + v * 64, c_row); });
}

}  // namespace

bool can_multiply_tiles() { return may_use_tiles() && has(Level::kBfloat16) && permitted(); }

TileUse::TileUse(bool is_needed) : restores_(is_needed && can_multiply_tiles() && !emulated_tiles) {
  if (restores_) new (before_) TileState();
}

TileUse::~TileUse() {
  if (restores_) reinterpret_cast<TileState*>(before_)->~TileState();
}

void multiply_on_tiles(const void* a, int64_t a_row, const void* b, int64_t b_row, int64_t depth, float* c, int64_t c_row,
                       int64_t vectors, bool add) {
  with_tiles([&](auto tiles) {
    using Kind = decltype(tiles);
    constexpr decltype(&multiply_block<Kind, 1>) of_vectors[] = {multiply_block<Kind, 1>, multiply_block<Kind, 2>,
                                                                 multiply_block<Kind, 3>, multiply_block<Kind, 4>};
    of_vectors[vectors - 1](static_cast<const char*>(a), 4 * a_row, static_cast<const char*>(b), 4 * b_row, depth,
                            reinterpret_cast<char*>(c), 4 * c_row, add);
  });
}

}  // namespace meshflow

#pragma GCC pop_options

#else  // for compilers without support for tiles

namespace meshflow {
bool can_multiply_tiles() { return false; }
TileUse::TileUse(bool) {}
TileUse::~TileUse() {}
void multiply_on_tiles(const void*, int64_t, const void*, int64_t, int64_t, float*, int64_t, int64_t, bool) {}
}  // namespace meshflow

#endif
