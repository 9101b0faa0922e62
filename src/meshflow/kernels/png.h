// PNG decoding by libpng.
#pragma once

#include <cstdint>
#include <vector>

// Decodes an image of size [height, width, channels]; returns false if it cannot be decoded here: it is
// damaged, not stored as 8 bits per channel, or larger than `limit` bytes.
bool decode_png(const unsigned char* data, int64_t bytes, int channels, int64_t limit, int32_t* shape,
                std::vector<unsigned char>* pixels);
