// Wrapping integer operations that several families share.
#pragma once

#include <cstdint>
#include <type_traits>

namespace bwgemm::emulator::integer {

// Arithmetic wraps: done on unsigned values of at least 32 bits.
template <typename T>
using Wide = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

struct Add {
  template <typename T>
  static T f(T a, T b) {
    return static_cast<T>(static_cast<Wide<T>>(a) + static_cast<Wide<T>>(b));
  }
};
struct Sub {
  template <typename T>
  static T f(T a, T b) {
    return static_cast<T>(static_cast<Wide<T>>(a) - static_cast<Wide<T>>(b));
  }
};
struct MulLo {
  template <typename T>
  static T f(T a, T b) {
    return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
  }
};
struct MulHi {
  template <typename T>
  static T f(T a, T b) {
    using P =
        std::conditional_t<sizeof(T) == 8,
                           std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>,
                           std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
    return static_cast<T>((static_cast<P>(a) * static_cast<P>(b)) >> (8 * sizeof(T)));
  }
};

}  // namespace bwgemm::emulator::integer
