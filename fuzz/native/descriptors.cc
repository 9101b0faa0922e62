// Parses damaged descriptors of convolutions and products, and runs small ones.
//
// An input is a computation byte, a number of types, their letters, and the other integers of a descriptor as
// signed bytes.

#include <cstdint>
#include <string>
#include <vector>

extern "C" int meshflow_onednn_query(const int64_t* descriptor, int64_t size, const char* types, char* text,
                                     int64_t capacity) noexcept;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 96) return -1;
  const size_t count = data[0] % 8;
  if (size < count + 2) return -1;
  constexpr char kTypes[] = "fbhdiuc";
  std::string types;
  for (size_t i = 0; i < count; ++i) types += kTypes[data[1 + i] % 7];
  std::vector<int64_t> descriptor;
  for (size_t i = 1 + count; i < size; ++i) {
    const int8_t value = static_cast<int8_t>(data[i]);
    // Extreme numbers are as likely as each small one.
    descriptor.push_back(value == 127 ? INT64_MAX : value == -128 ? INT64_MIN : value == 126 ? int64_t{1} << 40 : value);
  }
  char text[128];
  meshflow_onednn_query(descriptor.data(), static_cast<int64_t>(descriptor.size()), types.c_str(), text, sizeof(text));
  return 0;
}
