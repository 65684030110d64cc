// ptx/numbers.cuh, emulated.
#pragma once

typedef unsigned short half_bits;

inline half_bits to_half(float value) { return as<half_bits>(static_cast<_Float16>(value)); }
inline float to_float(half_bits half) { return static_cast<float>(as<_Float16>(half)); }
inline unsigned to_halves(float left, float right) {
    return to_half(left) | static_cast<unsigned>(to_half(right)) << 16;
}

// NaN stays NaN.
inline unsigned to_positive_halves(float left, float right) {
    return to_halves(left < 0.0f ? 0.0f : left, right < 0.0f ? 0.0f : right);
}


inline unsigned to_tf32(unsigned number) {
    return static_cast<unsigned>(std::max(static_cast<int>(number + 0x1000u), static_cast<int>(number)));
}
inline unsigned cut_to_tf32(unsigned number) { return number & 0xffffe000u; }

inline float larger_or_nan(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b); }
inline float smaller_or_nan(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b); }
inline float clipped_or_nan(float z, float most) { return smaller_or_nan(larger_or_nan(z, 0.0f), most); }
