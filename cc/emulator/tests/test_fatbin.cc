// The fat binary reader on well-formed and damaged containers.
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/runtime/fatbin.h"
#include "emulator/tests/fat_binary.h"
#include "emulator/tests/tensor_check.h"

namespace bwgemm::emulator {
namespace {

using testing::fat_binary;

const char kPtx[] = "\n.version 9.0\n.target sm_100f\n";

std::string Refusal(const std::string& bytes) {
  // A copy of exact size, so that a sanitizer sees reads past its end.
  std::vector<char> exact(bytes.begin(), bytes.end());
  try {
    ReadFatBinary(exact.data(), exact.size());
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "";
}

TEST(fatbin_finds_ptx_beside_machine_code) {
  std::string padded = kPtx;
  padded.append(5, '\0');
  const std::string bytes = fat_binary({{2,
                                         "\x7f"
                                         "ELF"},
                                        {1, padded}});
  const auto images = ReadFatBinary(bytes.data(), bytes.size());
  CHECK_EQ(images.size(), size_t{1});
  CHECK_EQ(images[0].text, std::string(kPtx));
  CHECK_EQ(images[0].arch, 100);
}

TEST(fatbin_without_ptx_is_empty) {
  const std::string bytes = fat_binary({{2, "machine code"}});
  CHECK_EQ(ReadFatBinary(bytes.data(), bytes.size()).size(), size_t{0});
}

TEST(fatbin_compressed_ptx_says_what_to_do) {
  CHECK_TEXT(Refusal(fat_binary({{1, kPtx, 20}})), "--no-compress");
  CHECK_TEXT(Refusal(fat_binary({{1, "(\xb5/\xfd"}})), "--no-compress");
}

// As zlib would, but the stream is the text backwards.
std::string Backwards(std::string_view stream) {
  if (stream.empty()) throw std::runtime_error("no stream");
  return std::string(stream.rbegin(), stream.rend());
}

TEST(fatbin_unpacks_what_the_build_compressed) {
  constexpr uint16_t kZlibPtx = 0x5A01;
  const std::string text = kPtx;
  const auto size = static_cast<uint32_t>(text.size());
  const std::string stream(text.rbegin(), text.rend());
  const std::string bytes = fat_binary({{kZlibPtx, stream + std::string(3, '\0'), size}});
  CHECK_TEXT(Refusal(bytes), "compressed for jax_bwgemm._emulator");
  SetInflate(Backwards);
  const auto images = ReadFatBinary(bytes.data(), bytes.size());
  CHECK_EQ(images.size(), size_t{1});
  CHECK_EQ(images[0].text, text);
  CHECK_EQ(images[0].arch, 100);
  CHECK_TEXT(Refusal(fat_binary({{kZlibPtx, stream, size + 1}})), "compressed PTX larger than");
  CHECK_TEXT(Refusal(fat_binary({{kZlibPtx, stream, 0}})), "no stream");
  CHECK_TEXT(Refusal(fat_binary({{kZlibPtx, "txet", 4}})), "no plain PTX text");
  SetInflate(nullptr);
}

TEST(fatbin_damaged_headers) {
  std::string bytes = fat_binary({{1, kPtx}});
  CHECK_TEXT(Refusal("x" + bytes), "wrong container magic");
  std::string small = bytes;
  small[6] = 8;  // container header
  CHECK_TEXT(Refusal(small), "container header too small");
  small = bytes;
  small[20] = 8;  // entry header
  CHECK_TEXT(Refusal(small), "entry header too small");
  std::string large = bytes;
  large[15] = '\x7f';  // container payload
  CHECK_TEXT(Refusal(large), "container larger than its data");
  large = bytes;
  large[31] = '\x7f';  // entry payload: the sum with its offset wraps around
  CHECK_TEXT(Refusal(large), "entry larger than its container");
}

TEST(fatbin_truncated_anywhere_is_refused) {
  const std::string bytes = fat_binary({{2, "machine code"}, {1, kPtx}});
  for (size_t size = 0; size < bytes.size(); ++size) {
    CHECK_TEXT(Refusal(bytes.substr(0, size)), "malformed fat binary");
  }
}

TEST(fatbin_wrapper_magic) {
  const uint64_t wrapper[3] = {0, 0, 0};
  try {
    ReadFatBinaryWrapper(wrapper);
    CHECK_EQ("no error", std::string("wrong wrapper magic"));
  } catch (const std::runtime_error& e) {
    CHECK_TEXT(e.what(), "wrong wrapper magic");
  }
}

}  // namespace
}  // namespace bwgemm::emulator

int main(int argc, char** argv) { return bwgemm::emulator::testing::run_all(argc, argv); }
