// The container layout is not documented; these are the fields that the CUDA 13.0 tools write and
// that this reader needs. Everything else in the headers is skipped by the sizes that they state.
#include "emulator/runtime/fatbin.h"

#include <cstring>
#include <stdexcept>
#include <string_view>

namespace bwgemm::emulator {
namespace {

constexpr std::uint32_t kWrapperMagic = 0x466243B1;  // FATBINC_MAGIC of fatbinary_section.h
constexpr std::uint32_t kContainerMagic = 0xBA55ED50;
constexpr std::uint16_t kEntryPtx = 1;
constexpr std::uint16_t kEntryZlibPtx = 0x5A01;  // ZLIB_PTX of cmake/split_fatbin.py

Inflate inflate = nullptr;

struct Wrapper {
  std::uint32_t magic;
  std::uint32_t version;
  const void* data;
  const void* filename_or_fatbins;
};

struct ContainerHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint64_t payload_bytes;  // all entries, headers included
};
static_assert(sizeof(ContainerHeader) == 16);

struct EntryHeader {
  std::uint16_t kind;  // kEntryPtx, kEntryZlibPtx; 2 = ELF
  std::uint16_t version;
  std::uint32_t header_bytes;
  std::uint64_t payload_bytes;
  std::uint32_t compressed_bytes;  // 0 when stored plainly
  std::uint32_t options_offset;
  std::uint16_t minor;
  std::uint16_t major;
  std::uint32_t arch;
};
static_assert(sizeof(EntryHeader) == 32);

[[noreturn]] void Malformed(const std::string& what) {
  throw std::runtime_error("malformed fat binary: " + what);
}

template <typename T>
T ReadAt(std::string_view bytes, std::size_t offset, const char* what) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) {
    Malformed(std::string(what) + " at byte " + std::to_string(offset) + " is truncated");
  }
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::string Unpack(std::string_view payload, const EntryHeader& entry) {
  if (entry.compressed_bytes > payload.size()) Malformed("compressed PTX larger than its entry");
  if (inflate == nullptr) {
    throw std::runtime_error(
        "the fat binary holds PTX that was compressed for jax_bwgemm._emulator, which alone "
        "unpacks it");
  }
  return inflate(payload.substr(0, entry.compressed_bytes));
}

PtxImage ReadPtx(std::string_view payload, const EntryHeader& entry) {
  if (entry.kind == kEntryPtx && entry.compressed_bytes != 0) {
    throw std::runtime_error(
        "the fat binary holds compressed PTX, which the emulator does not unpack: compile with "
        "nvcc --no-compress");
  }
  std::string unpacked;
  if (entry.kind == kEntryZlibPtx) {
    unpacked = Unpack(payload, entry);
    payload = unpacked;
  }
  // The text is padded with zero bytes to a multiple of 8.
  std::string_view text = payload.substr(0, payload.find('\0'));
  if (text.find(".version") == std::string_view::npos) {
    throw std::runtime_error(
        "the PTX entry of the fat binary holds no plain PTX text: compile with "
        "nvcc --no-compress");
  }
  return PtxImage{std::string(text), static_cast<int>(entry.arch)};
}

}  // namespace

void SetInflate(Inflate function) { inflate = function; }

std::vector<PtxImage> ReadFatBinary(const void* data, std::size_t size) {
  const std::string_view bytes(static_cast<const char*>(data), size);
  const auto header = ReadAt<ContainerHeader>(bytes, 0, "container header");
  if (header.magic != kContainerMagic) Malformed("wrong container magic");
  if (header.header_bytes < sizeof(ContainerHeader)) Malformed("container header too small");
  if (header.header_bytes > size || header.payload_bytes > size - header.header_bytes) {
    Malformed("container larger than its data");
  }
  const std::string_view payload = bytes.substr(header.header_bytes, header.payload_bytes);

  std::vector<PtxImage> images;
  std::size_t offset = 0;
  while (offset < payload.size()) {
    const auto entry = ReadAt<EntryHeader>(payload, offset, "entry header");
    if (entry.header_bytes < sizeof(EntryHeader)) Malformed("entry header too small");
    const std::size_t left = payload.size() - offset;
    if (entry.header_bytes > left || entry.payload_bytes > left - entry.header_bytes) {
      Malformed("entry larger than its container");
    }
    if (entry.kind == kEntryPtx || entry.kind == kEntryZlibPtx) {
      images.push_back(
          ReadPtx(payload.substr(offset + entry.header_bytes, entry.payload_bytes), entry));
    }
    offset += entry.header_bytes + entry.payload_bytes;
  }
  return images;
}

std::vector<PtxImage> ReadFatBinaryWrapper(const void* wrapper) {
  Wrapper w;
  std::memcpy(&w, wrapper, sizeof(w));
  if (w.magic != kWrapperMagic) Malformed("wrong wrapper magic");
  if (w.data == nullptr) Malformed("wrapper without data");
  ContainerHeader header;
  std::memcpy(&header, w.data, sizeof(header));
  if (header.magic != kContainerMagic) Malformed("wrong container magic");
  return ReadFatBinary(w.data, header.header_bytes + header.payload_bytes);
}

}  // namespace bwgemm::emulator
