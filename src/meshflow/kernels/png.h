// PNG images by libpng.
#pragma once

#include <cstdint>
#include <vector>

// The pixels of an image of size [height, width, channels]; false when it cannot be decoded here: it is
// damaged, not stored as 8 bits for each of these channels, or larger than `limit` bytes.
bool decode_png(const unsigned char* data, int64_t bytes, int channels, int64_t limit, int32_t* shape,
                std::vector<unsigned char>* pixels);
