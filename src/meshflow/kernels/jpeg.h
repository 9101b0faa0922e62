// JPEG images by libjpeg.
#pragma once

#include <cstdint>
#include <vector>

// How an image is decoded, as `decoded` in jpeg.py has it.
struct JpegOptions {
  int channels, ratio, fast, fancy;
  int64_t limit;  // of the bytes that it takes
};

// The pixels of an image of size [height, width, channels]; false when it cannot be decoded here.
bool decode_jpeg(const unsigned char* data, int64_t bytes, const JpegOptions& options,
                 int32_t* shape, std::vector<unsigned char>* pixels);
