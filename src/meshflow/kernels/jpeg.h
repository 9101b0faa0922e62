// JPEG decoding by libjpeg.
#pragma once

#include <cstdint>
#include <vector>

// Decoding options, as in `decoded` in jpeg.py.
struct JpegOptions {
  int channels, ratio, fast, fancy;
  int64_t limit;  // maximum bytes of the image
};

// Decodes an image of size [height, width, channels]; returns false if it cannot be decoded here.
bool decode_jpeg(const unsigned char* data, int64_t bytes, const JpegOptions& options,
                 int32_t* shape, std::vector<unsigned char>* pixels);
