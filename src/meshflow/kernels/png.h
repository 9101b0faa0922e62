// PNG images by libpng.
#pragma once

#include <cstdint>
#include <vector>

// The pixels of an image of size [height, width, channels]; false when it cannot be decoded here: it is
// damaged, or not stored as 8 bits for each of these channels.
bool decode_png(const unsigned char* data, int64_t bytes, int channels, int32_t* shape,
                std::vector<unsigned char>* pixels);
