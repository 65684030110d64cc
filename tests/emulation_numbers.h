// What kernels that look at numbers take from images/numbers.cuh, emulated; a number out of place is a fault.

#if HALF
typedef unsigned short Number;
inline float as_float(Number bits) { return static_cast<float>(as<_Float16>(bits)); }
#else
typedef float Number;
inline float as_float(Number value) { return value; }
#endif

inline float loaded(const Number& number) { return as_float(__ldg(&number)); }
