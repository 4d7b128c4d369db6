// What the C++ of an epilogue calls: the scalar operations of jax.lax that C++ defines otherwise or
// not at all. For the device (NVRTC, without headers) and for the host, where tests run it.
#ifdef __CUDACC_RTC__
#define BW_FUNCTION __device__ __forceinline__
// Nothing writes operands while the kernel runs, so that loads may be moved ahead of stores.
#define BW_LOAD(pointer) __ldg(pointer)
#else
#include <cmath>
#include <cstring>
#define BW_FUNCTION static inline
#define BW_LOAD(pointer) (*(pointer))
#endif

template <class T>
struct bw_of {  // integers
  static constexpr bool is_float = false, is_signed = T(-1) < T(0);
  static constexpr int bits = 8 * sizeof(T);
};
template <>
struct bw_of<float> {
  static constexpr bool is_float = true, is_signed = true;
};

BW_FUNCTION float bw_from_bits(unsigned bits) {
#ifdef __CUDACC_RTC__
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
#endif
}

BW_FUNCTION unsigned bw_to_bits(float x) {
#ifdef __CUDACC_RTC__
  return __float_as_uint(x);
#else
  unsigned bits;
  std::memcpy(&bits, &x, 4);
  return bits;
#endif
}

// --- Numbers of 16 bits: in memory as unsigned short, in registers as the float32 of equal value.

BW_FUNCTION float bw_from_bfloat16(unsigned short bits) {
  return bw_from_bits((unsigned)bits << 16);
}

BW_FUNCTION unsigned short bw_to_bfloat16(float x) {
#ifdef __CUDACC_RTC__
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#else
  if (x != x) return 0x7fc0;
  const unsigned bits = bw_to_bits(x);
  return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#endif
}

BW_FUNCTION float bw_from_float16(unsigned short bits) {
#ifdef __CUDACC_RTC__
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
#else
  const unsigned sign = (unsigned)(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return bw_from_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // 2^112 moves the exponent's bias, and makes subnormals normal.
  const float x = bw_from_bits(rest << 13) * 0x1p112f;
  return bw_from_bits(sign | bw_to_bits(x));
#endif
}

BW_FUNCTION unsigned short bw_to_float16(float x) {
#ifdef __CUDACC_RTC__
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#else
  if (x != x) return 0x7e00;
  const unsigned short sign = (unsigned short)(bw_to_bits(x) >> 16 & 0x8000u);
  const float size = std::fabs(x);
  if (size >= 65520.0f) return (unsigned short)(sign | 0x7c00);
  if (size < 0x1p-14f) return (unsigned short)(sign | (unsigned)std::nearbyint(size * 0x1p24f));
  const unsigned bits = bw_to_bits(size);
  return (unsigned short)(sign | ((bits - (112u << 23) + 0xfffu + (bits >> 13 & 1u)) >> 13));
#endif
}

// Two neighbours in memory.
BW_FUNCTION unsigned bw_pack_bfloat16(float low, float high) {
#ifdef __CUDACC_RTC__
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
#else
  return (unsigned)bw_to_bfloat16(low) | (unsigned)bw_to_bfloat16(high) << 16;
#endif
}

BW_FUNCTION unsigned bw_pack_float16(float low, float high) {
#ifdef __CUDACC_RTC__
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
#else
  return (unsigned)bw_to_float16(low) | (unsigned)bw_to_float16(high) << 16;
#endif
}

BW_FUNCTION float bw_round_bfloat16(float x) { return bw_from_bfloat16(bw_to_bfloat16(x)); }
BW_FUNCTION float bw_round_float16(float x) { return bw_from_float16(bw_to_float16(x)); }

// --- Arithmetic. Integers wrap around, division by zero gives -1 and x, as XLA's do.

template <class T>
BW_FUNCTION T bw_add(T x, T y) {
  if constexpr (bw_of<T>::is_float) return x + y;
  else return (T)((unsigned)x + (unsigned)y);
}

template <class T>
BW_FUNCTION T bw_sub(T x, T y) {
  if constexpr (bw_of<T>::is_float) return x - y;
  else return (T)((unsigned)x - (unsigned)y);
}

template <class T>
BW_FUNCTION T bw_mul(T x, T y) {
  if constexpr (bw_of<T>::is_float) return x * y;
  else return (T)((unsigned)x * (unsigned)y);
}

template <class T>
BW_FUNCTION T bw_neg(T x) {
  if constexpr (bw_of<T>::is_float) return -x;
  else return (T)(0u - (unsigned)x);
}

template <class T>
BW_FUNCTION T bw_div(T x, T y) {
  if constexpr (bw_of<T>::is_float) return x / y;
  else if (y == T(0)) return T(-1);
  else if (bw_of<T>::is_signed && y == T(-1)) return bw_neg(x);
  else return (T)(x / y);
}

template <class T>
BW_FUNCTION T bw_rem(T x, T y) {
  if constexpr (bw_of<T>::is_float) return fmodf(x, y);
  else if (y == T(0)) return x;
  else if (bw_of<T>::is_signed && y == T(-1)) return T(0);
  else return (T)(x % y);
}

template <class T>
BW_FUNCTION T bw_abs(T x) {
  if constexpr (bw_of<T>::is_float) return fabsf(x);
  else return x < T(0) ? bw_neg(x) : x;
}

template <class T>
BW_FUNCTION T bw_sign(T x) {
  if constexpr (bw_of<T>::is_float) return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;  // NaN, +0, -0
  else return (T)((x > T(0)) - (x < T(0)));
}

// Of NaN and anything: NaN.
template <class T>
BW_FUNCTION T bw_max(T x, T y) {
  return x > y || x != x ? x : y;
}

template <class T>
BW_FUNCTION T bw_min(T x, T y) {
  return x < y || x != x ? x : y;
}

template <class T>
BW_FUNCTION T bw_not(T x) {
  return (T)~x;
}
BW_FUNCTION bool bw_not(bool x) { return !x; }

// By as many bits as there are, or more: all are shifted out.
template <class T>
BW_FUNCTION T bw_shift_left(T x, T y) {
  return (unsigned)y >= (unsigned)bw_of<T>::bits ? T(0) : (T)((unsigned)x << y);
}

template <class T>
BW_FUNCTION T bw_shift_right_logical(T x, T y) {
  constexpr unsigned kMask = ~0u >> (32 - bw_of<T>::bits);
  return (unsigned)y >= (unsigned)bw_of<T>::bits ? T(0) : (T)(((unsigned)x & kMask) >> y);
}

// Fills in the highest bit, of unsigned integers too.
template <class T>
BW_FUNCTION T bw_shift_right_arithmetic(T x, T y) {
  constexpr int kMore = 32 - bw_of<T>::bits, kLast = bw_of<T>::bits - 1;
  const int extended = (int)((unsigned)x << kMore) >> kMore;
  return (T)(extended >> ((unsigned)y > (unsigned)kLast ? kLast : (int)y));
}

template <class T>
BW_FUNCTION T bw_population_count(T x) {
  unsigned rest = (unsigned)x & ~0u >> (32 - bw_of<T>::bits), count = 0;
  for (; rest; rest &= rest - 1) ++count;
  return (T)count;
}

template <class T>
BW_FUNCTION T bw_clz(T x) {
  unsigned rest = (unsigned)x & ~0u >> (32 - bw_of<T>::bits), count = bw_of<T>::bits;
  for (; rest; rest >>= 1) --count;
  return (T)count;
}

BW_FUNCTION bool bw_is_finite(float x) { return (bw_to_bits(x) & 0x7f800000u) != 0x7f800000u; }

BW_FUNCTION float bw_rsqrt(float x) {
#ifdef __CUDACC_RTC__
  return rsqrtf(x);
#else
  return 1.0f / std::sqrt(x);
#endif
}

// --- Functions that kernels with 16-bit results approximate (BW_APPROXIMATE): to 2^-14 of the
// result or better, where rounding it changes 2^-9 (bfloat16) or 2^-12 (float16).

#if defined(BW_APPROXIMATE) && defined(__CUDACC_RTC__)
BW_FUNCTION float bw_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
BW_FUNCTION float bw_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
BW_FUNCTION float bw_exp(float x) { return bw_exp2(x * 1.4426950408889634f); }
#else
BW_FUNCTION float bw_reciprocal(float x) { return 1.0f / x; }
BW_FUNCTION float bw_exp2(float x) { return exp2f(x); }
BW_FUNCTION float bw_exp(float x) { return expf(x); }
#endif

BW_FUNCTION float bw_logistic(float x) { return bw_reciprocal(1.0f + bw_exp(-x)); }

// Of x = -log2(e) u: logistic(u).
BW_FUNCTION float bw_logistic_of_log2(float x) { return bw_reciprocal(1.0f + bw_exp2(x)); }

// Without the cancellation of 1 + tanh(x).
BW_FUNCTION float bw_one_plus_tanh(float x) { return 2.0f * bw_logistic(2.0f * x); }

BW_FUNCTION float bw_tanh(float x) {
#ifdef BW_APPROXIMATE
  const float near = x - x * x * x * (1.0f / 3.0f);
  return fabsf(x) < 0.1f ? near : bw_one_plus_tanh(x) - 1.0f;
#else
  return tanhf(x);
#endif
}

#ifdef BW_APPROXIMATE
// exp(-x^2) times a polynomial in 1 / (1 + p |x|), fitted to erfc for 0 <= x <= 9 with the least
// relative error, 7e-6.
BW_FUNCTION float bw_erfc(float x) {
  const float t = bw_reciprocal(1.0f + 0.425f * fabsf(x));
  float p = -0.15564758f;
  p = p * t + 0.43342774f;
  p = p * t - 0.036076071f;
  p = p * t + 0.29026039f;
  p = p * t + 0.22742855f;
  p = p * t + 0.24061354f;
  const float tail = p * t * bw_exp(-x * x);
  return x < 0.0f ? 2.0f - tail : tail;
}

BW_FUNCTION float bw_erf(float x) {
  const float square = x * x;  // of its series, near zero
  const float near = x * (1.1283792f + square * (-0.37612639f + square * 0.11283792f));
  return fabsf(x) < 0.15f ? near : 1.0f - bw_erfc(x);
}
#else
BW_FUNCTION float bw_erfc(float x) { return erfcf(x); }
BW_FUNCTION float bw_erf(float x) { return erff(x); }
#endif

// x to the power kPower > 0.
template <int kPower, class T>
BW_FUNCTION T bw_power(T x) {
  if constexpr (kPower == 1) {
    return x;
  } else {
    const T half = bw_power<kPower / 2>(x), square = bw_mul(half, half);
    if constexpr (kPower % 2 != 0) return bw_mul(square, x);
    else return square;
  }
}

// --- Conversions. Floats to integers: toward zero, the nearest that there is, NaN to 0.

template <class T>
BW_FUNCTION T bw_to_integer(float x) {
  constexpr int kBits = bw_of<T>::bits - (bw_of<T>::is_signed ? 1 : 0);
  const float end = bw_from_bits((127u + kBits) << 23);  // 2^kBits
  const T largest = (T)(~0u >> (32 - kBits));
  if (x != x) return T(0);
  if (x >= end) return largest;
  if (bw_of<T>::is_signed ? x <= -end : x <= 0.0f) {
    return bw_of<T>::is_signed ? (T)(-largest - 1) : T(0);
  }
  return (T)x;
}
