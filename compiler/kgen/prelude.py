"""The text that stands above the kernels of a translation unit: what each target needs that its language
does not have.

Maxima and minima return NaN where an operand is NaN, divisions of integers round down and survive a zero
divisor, and half types convert by their bits, so that the compiler can vectorise the conversion."""

_SHARED = """
// comparing like this is one instruction, which gives the second operand where one is NaN; the first one is
// looked at unless it is a number in the text
template <typename T> FUNCTION T max_of(T a, T b) { T larger = a > b ? a : b; return a != a ? a : larger; }
template <typename T> FUNCTION T min_of(T a, T b) { T smaller = a < b ? a : b; return a != a ? a : smaller; }
template <typename T> FUNCTION bool is_nan(T x) { return x != x; }
template <typename T> FUNCTION bool is_inf(T x) { return x == x && x - x != x - x; }
template <typename T> FUNCTION T abs_of(T x) { return x < 0 ? T(-x) : x; }
template <typename T> FUNCTION T sign_of(T x) { return x != x ? x : T((x > T(0)) - (x < T(0))); }
FUNCTION float floor_div(float a, float b) {
    float r = fmodf(a, b), q = (a - r) / b;
    if (r != 0 && (b < 0) != (r < 0)) q -= 1;
    if (b == 0) return a / b;
    float f = floorf(q);
    return q == 0 ? copysignf(0.0f, a / b) : q - f > 0.5f ? f + 1 : f;
}
FUNCTION double floor_div(double a, double b) {
    double r = fmod(a, b), q = (a - r) / b;
    if (r != 0 && (b < 0) != (r < 0)) q -= 1;
    if (b == 0) return a / b;
    double f = floor(q);
    return q == 0 ? copysign(0.0, a / b) : q - f > 0.5 ? f + 1 : f;
}
template <typename T> FUNCTION T signed_as(T remainder, T divisor) {
    return remainder != 0 && (divisor < 0) != (remainder < 0) ? T(remainder + divisor) : remainder;
}
FUNCTION float floor_mod(float a, float b) { return signed_as(fmodf(a, b), b); }
FUNCTION double floor_mod(double a, double b) { return signed_as(fmod(a, b), b); }
// integers: a zero divisor gives zero, not a trap; the most negative number survives -1
template <typename T> FUNCTION bool is_minus_one(T x) { return T(-1) < T(0) && x == T(-1); }
template <typename T> FUNCTION T floor_div(T a, T b) {
    if (b == 0) return 0;
    if (is_minus_one(b)) return T(0 - (UNSIGNED)a);
    T q = a / b;
    return q - T(a % b != 0 && (a < 0) != (b < 0));
}
template <typename T> FUNCTION T trunc_mod(T a, T b) { return b == 0 || is_minus_one(b) ? T(0) : T(a % b); }
template <typename T> FUNCTION T floor_mod(T a, T b) { return signed_as(trunc_mod(a, b), b); }
template <typename T> FUNCTION T int_pow(T a, T b) {
    if (b < 0) return a == 1 ? T(1) : a == T(-1) ? (b & 1 ? T(-1) : T(1)) : T(0);
    UNSIGNED result = 1, base = (UNSIGNED)a;
    for (; b > 0; b >>= 1, base *= base) if (b & 1) result *= base;
    return T(result);
}
// how two elements of a reduction are joined
struct Add { template <typename T> ON_DEVICE T operator()(T a, T b) const { return a + b; } };
struct Multiply { template <typename T> ON_DEVICE T operator()(T a, T b) const { return a * b; } };
struct Greatest { template <typename T> ON_DEVICE T operator()(T a, T b) const { return max_of(a, b); } };
struct Least { template <typename T> ON_DEVICE T operator()(T a, T b) const { return min_of(a, b); } };
struct Or { template <typename T> ON_DEVICE T operator()(T a, T b) const { return T(a | b); } };
struct And { template <typename T> ON_DEVICE T operator()(T a, T b) const { return T(a & b); } };
"""

_OLD_VECTOR_FORMS = ("exp", "log", "sin", "cos", "pow")  # in glibc's libmvec since 2.22
_NEW_VECTOR_FORMS = (  # since 2.35; round and the like have none, and that of fmod is ours
    *(
        "exp2",
        "expm1",
        "log2",
        "log10",
        "log1p",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "erf",
        "atan2",
    ),
)


def _vector_forms(names: tuple[str, ...]) -> str:
    """Declarations that let the compiler call the vector versions of functions in loops, without
    -ffast-math."""
    lines = []
    for name in names:
        for suffix, number in (("f", "float"), ("", "double")):
            operands = ", ".join([number] * (2 if name in ("pow", "atan2") else 1))
            lines.append(f"VECTOR_FORM {number} {name}{suffix}({operands}) noexcept;")
    return "\n".join(lines)


CPP = (
    f"""#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

#define VECTOR_FORM extern "C" __attribute__((simd("notinbranch"), const))
#if defined(__x86_64__) && defined(__GLIBC__)
{_vector_forms(_OLD_VECTOR_FORMS)}
#if __GLIBC_PREREQ(2, 35)
{_vector_forms(_NEW_VECTOR_FORMS)}
#endif
#endif
"""
    + """
#define FUNCTION [[maybe_unused]] static inline
#define ON_DEVICE
#define UNSIGNED uint64_t
#define INF_F __builtin_inff()
#define INF_D __builtin_inf()
#define NAN_F __builtin_nanf("")
#define NAN_D __builtin_nan("")
"""
    + _SHARED
    + """
// GCC takes (float)(int)x for a truncation, which makes -0.0 of -0.25; no whole number is -0.0
template <typename F, typename I> FUNCTION F from_whole(I x) { return x == 0 ? F(0) : F(x); }
// cut off; NaN and what is out of range become the most negative number, in vector code and outside of it
template <typename I, typename F> FUNCTION I whole(F x) {
    constexpr F least = F(std::numeric_limits<I>::min());
    return x >= least && x < -least ? I(x) : std::numeric_limits<I>::min();
}
enum class half_t : uint16_t {};    // enumerations, as loops that copy structures are not vectorised
enum class bfloat_t : uint16_t {};
using halves_t [[gnu::vector_size(16)]] = short;
using floats_t [[gnu::vector_size(32)]] = float;
FUNCTION float float_from(uint32_t bits) { return __builtin_bit_cast(float, bits); }
FUNCTION uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
FUNCTION float float_of(bfloat_t x) { return float_from(uint32_t(x) << 16); }
FUNCTION bfloat_t bfloat_of(float x) {
    uint32_t bits = bits_of(x), rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return bfloat_t(x != x ? 0x7fc0 : rounded);
}
FUNCTION float float_of(half_t x) {
    uint32_t shifted = (uint32_t(x) & 0x7fff) << 13;
    uint32_t finite = bits_of(float_from(shifted) * 0x1p112f), special = shifted | 0x7f800000;
    return float_from(((uint32_t(x) & 0x8000) << 16) | (shifted >= 0x0f800000 ? special : finite));
}
FUNCTION half_t half_of(float x) {
    uint32_t bits = bits_of(x), sign = (bits >> 16) & 0x8000, size = bits & 0x7fffffff;
    uint32_t normal = (size - 0x38000000 + 0xfff + ((size >> 13) & 1)) >> 13;  // ties to even
    uint32_t small = bits_of(float_from(size) + 0.5f) - 0x3f000000;  // adding rounds to a multiple of 2^-24
    uint32_t large = size > 0x7f800000 ? 0x7e00 : 0x7c00;
    return half_t(sign | (size < 0x38800000 ? small : size >= 0x477ff000 ? large : normal));
}
// runs of half precision numbers to and from float32
FUNCTION void widen(const half_t* from, int64_t count, float* to) {
    int64_t at = 0;
#ifdef __F16C__
    for (; at + 8 <= count; at += 8) {
        halves_t eight;
        __builtin_memcpy(&eight, from + at, sizeof eight);
        floats_t wide = __builtin_ia32_vcvtph2ps256(eight);
        __builtin_memcpy(to + at, &wide, sizeof wide);
    }
#endif
    for (; at < count; ++at) to[at] = float_of(from[at]);
}
FUNCTION void narrow(const float* from, int64_t count, half_t* to) {
    int64_t at = 0;
#ifdef __F16C__
    for (; at + 8 <= count; at += 8) {
        floats_t eight;
        __builtin_memcpy(&eight, from + at, sizeof eight);
        halves_t half = __builtin_ia32_vcvtps2ph256(eight, 0);
        __builtin_memcpy(to + at, &half, sizeof half);
    }
#endif
    for (; at < count; ++at) to[at] = half_of(from[at]);
}
FUNCTION float reciprocal_sqrt(float x) { return 1.0f / sqrtf(x); }
FUNCTION double reciprocal_sqrt(double x) { return 1.0 / sqrt(x); }
// within 1.1 units in the last place: two to the whole part of x / ln 2, times a polynomial for the rest, r.
// The library's vector form takes ten times as long where an element's result is below the normal numbers, as
// that of what a mask hides is
FUNCTION float exp_of(float x) {
    float bounded = x > 89.0f ? 89.0f : x < -104.0f ? 0.0f : x;
    float n = rintf(bounded * 1.44269504f);
    float r = bounded - n * 0.693359375f + n * 2.12194440e-4f;  // ln 2 in two parts, one exact
    float p = 1 / 720.0f + r * (1 / 5040.0f);
    p = 1 / 6.0f + r * (1 / 24.0f + r * (1 / 120.0f + r * p));
    p = 1.0f + (r + r * r * (0.5f + r * p));
    int32_t whole = int32_t(n), half = whole >> 1;  // two factors, as one may be below the normal numbers
    float power = p * float_from(uint32_t(half + 127) << 23) * float_from(uint32_t(whole - half + 127) << 23);
    return x < -104.0f ? 0.0f : power;
}
FUNCTION double exp_of(double x) { return exp(x); }
// within 5.6 units in the last place, where the library's vector form is within 4 and takes twice as long: a
// quotient of polynomials, odd as erf is
FUNCTION float erf_of(float x) {
    float s = x * x;
    float p = 0.050955694f + s * (0.003408291f + s * 0.00022905065f);
    p = x * (1.1283791f + s * (0.18520832f + s * p));
    float q = 0.0010179626f + s * (2.3547966e-05f + s * -1.1791603e-07f);
    q = 1.0f + s * (0.49746925f + s * (0.11098505f + s * (0.01407047f + s * q)));
    float size = fabsf(p / q);
    size = fabsf(x) > 3.7f ? 1.0f : size;  // one condition each: no loop is vectors that selects one
    return copysignf(size > 1.0f ? 1.0f : size, x);
}
FUNCTION double erf_of(double x) { return erf(x); }
// n / d for 0 <= n < 2^63, with the multiplier and shift that the host made from d
FUNCTION int64_t divide(int64_t n, int64_t multiplier, int64_t shift) {
    uint64_t high = uint64_t((unsigned __int128)uint64_t(n) * uint64_t(multiplier) >> 64);
    return int64_t((high + uint64_t(n)) >> shift);
}
// lanes for a thread to take at a time: at most so many, fewer where `rows` rows leave threads without work
FUNCTION int64_t share(int64_t lanes, int64_t threads, int64_t rows, int64_t most) {
    int64_t pieces = rows > 0 && rows < threads ? (threads + rows - 1) / rows : 1;
    int64_t fair = ((lanes + pieces - 1) / pieces + 63) / 64 * 64;
    return fair < most ? fair : most;
}
[[maybe_unused]] static void report(int64_t* status, int64_t number, int64_t position, int64_t value) {
    int64_t none = 0;
    if (__atomic_compare_exchange_n(status, &none, number, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        status[1] = position;
        status[2] = value;
    }
}
// memory for a row, one for each thread and number; it grows and stays
template <typename T, int number> T* scratch(int64_t count) {
    static thread_local struct Owner {
        T* data = nullptr;
        int64_t count = 0;
        ~Owner() { std::free(data); }
    } owner;
    if (owner.count < count) {
        std::free(owner.data);
        owner.data = static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64));
        if (owner.data == nullptr) std::abort();
        owner.count = count;
    }
    return owner.data;
}
// what the lanes of a row were joined into, joined pairwise
template <int count, typename T, typename Join> T join_lanes(T* lanes, Join join) {
    if constexpr (count > 1) {
        #pragma omp simd
        for (int lane = 0; lane < count / 2; ++lane) lanes[lane] = join(lanes[lane], lanes[lane + count / 2]);
        return join_lanes<count / 2>(lanes, join);
    }
    return lanes[0];
}
// as many elements as there are whole strips for are summed side by side, what is left in shorter ones
template <int length, typename T> T sum_of_strips(const T* terms, int64_t count, int64_t& first) {
    if (count - first < length) return 0;
    T lanes[length];
    for (int lane = 0; lane < length; ++lane) lanes[lane] = 0;
    for (; count - first >= length; first += length)
    #pragma omp simd
    for (int lane = 0; lane < length; ++lane) lanes[lane] += terms[first + lane];
    return join_lanes<length>(lanes, Add());
}
inline float sum_of(const float* terms, int64_t count) {
    int64_t first = 0;
    float sum = sum_of_strips<64>(terms, count, first);
    sum += sum_of_strips<8>(terms, count, first);
    return sum + sum_of_strips<1>(terms, count, first);
}
template <typename T> constexpr T least_like(T) {
    if constexpr (std::numeric_limits<T>::has_infinity) return -std::numeric_limits<T>::infinity();
    return std::numeric_limits<T>::lowest();
}
template <typename T> constexpr T greatest_like(T) {
    if constexpr (std::numeric_limits<T>::has_infinity) return std::numeric_limits<T>::infinity();
    return std::numeric_limits<T>::max();
}
#pragma omp declare reduction(greatest : float, double, int64_t, int32_t, int16_t, int8_t, uint8_t, bool : \\
    omp_out = max_of(omp_out, omp_in)) initializer(omp_priv = least_like(omp_orig))
#pragma omp declare reduction(least : float, double, int64_t, int32_t, int16_t, int8_t, uint8_t, bool : \\
    omp_out = min_of(omp_out, omp_in)) initializer(omp_priv = greatest_like(omp_orig))
"""
)

# below CPP in units that take remainders of floats: every unit would be compiled 0.04 s longer
REMAINDERS = """
// The vector forms of fmodf, which the C library lacks; as exact as it is. A quotient in double is off by
// half its last bit, so that what is left after its whole part is taken fits a double, and is exact: one
// step as long as the quotient is below 2^53, and six for the largest float by the least
#if defined(__x86_64__) && defined(__FMA__)
VECTOR_FORM float fmodf(float, float) noexcept;
template <int lanes, typename Vector> FUNCTION Vector remainders(Vector dividends, Vector divisors) {
    float x[lanes], y[lanes];
    double left[lanes], by[lanes];
    __builtin_memcpy(x, &dividends, sizeof x);
    __builtin_memcpy(y, &divisors, sizeof y);
    for (int lane = 0; lane < lanes; ++lane) {
        double size = fabsf(y[lane]);
        left[lane] = fabsf(x[lane]);
        by[lane] = size > 0x1p200 ? 0x1p200 : size;  // infinity as well leaves what is finite
    }
    for (int again = 1; again;) {
        again = 0;
        for (int lane = 0; lane < lanes; ++lane) {
            left[lane] = fma(-trunc(left[lane] / by[lane]), by[lane], left[lane]);
            again |= fabs(left[lane]) >= by[lane];
        }
    }
    for (int lane = 0; lane < lanes; ++lane)
        x[lane] = copysignf(left[lane] < 0 ? left[lane] + by[lane] : left[lane], x[lane]);
    __builtin_memcpy(&dividends, x, sizeof x);
    return dividends;
}
// named as the vector ABI names them, by the set of instructions and how many lanes there are
#define REMAINDERS(set, count) \\
    using lanes_##set [[gnu::vector_size(4 * count)]] = float; \\
    extern "C" __attribute__((visibility("hidden"))) \\
    lanes_##set _ZGV##set##N##count##vv_fmodf(lanes_##set x, lanes_##set y) \\
    { return remainders<count>(x, y); }
REMAINDERS(b, 4)
REMAINDERS(c, 8)
REMAINDERS(d, 8)
#ifdef __AVX512F__
REMAINDERS(e, 16)
#endif
#endif
"""

CUDA = (
    """using Wide = long long;
#define FUNCTION static __device__ __forceinline__
#define ON_DEVICE __device__
#define UNSIGNED unsigned long long
#define INF_F __int_as_float(0x7f800000)
#define INF_D __longlong_as_double(0x7ff0000000000000LL)
#define NAN_F __int_as_float(0x7fc00000)
#define NAN_D __longlong_as_double(0x7ff8000000000000LL)
"""
    + _SHARED
    + """
// as in cuda_fp16.h and cuda_bf16.h, which take longer to read than a unit's kernels; braces and line ends
// are theirs, since the optimiser weighs a loop by them
#ifdef __CUDACC__
struct half_t { unsigned short bits; };
struct bfloat_t { unsigned short bits; };
FUNCTION float float_of(half_t x) {
    float result;
    asm("{  cvt.f32.f16 %0, %1;}\\n" : "=f"(result) : "h"(x.bits));
    return result;
}
FUNCTION half_t half_of(float x) {
    half_t result;
    asm("{  cvt.rn.f16.f32 %0, %1;}\\n" : "=h"(result.bits) : "f"(x));
    return result;
}
FUNCTION float float_of(bfloat_t x) {
#if __CUDA_ARCH__ >= 900
    float result;
    asm("{ cvt.f32.bf16 %0, %1;}\\n" : "=f"(result) : "h"(x.bits));
    return result;
#else
    return __uint_as_float((unsigned)x.bits << 16);
#endif
}
FUNCTION bfloat_t bfloat_of(float x) {
    bfloat_t result;
#if __CUDA_ARCH__ >= 800
    asm("{  cvt.rn.bf16.f32 %0, %1;}\\n" : "=h"(result.bits) : "f"(x));
#else
    unsigned bits = __float_as_uint(x);
    result.bits = x != x ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
#endif
    return result;
}
#endif
FUNCTION float reciprocal_sqrt(float x) { return rsqrtf(x); }
FUNCTION double reciprocal_sqrt(double x) { return rsqrt(x); }
#if __CUDA_ARCH__ >= 800
FUNCTION float max_of(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}
FUNCTION float min_of(float a, float b) {
    float smaller;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
    return smaller;
}
#endif
// wrong by 2^-17 of e^x at most (2^-20 for |x| < 16), zero for what is subnormal; for half precision
#ifdef __CUDACC__
FUNCTION float exp_roughly(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634f));
    return result;
}
#else
FUNCTION float exp_roughly(float x) { return expf(x); }
#endif
// a / b by the inverse of b, made once for many a; both are scaled where b is so small that it has none
FUNCTION float scaled(float x, float by) { return fabsf(by) < 0x1p-100f ? x * 0x1p50f : x; }
FUNCTION float inverse_of(float b) { return 1.0f / scaled(b, b); }
FUNCTION float quotient(float a, float b, float inverse) { return scaled(a, b) * inverse; }
// n / d with the multiplier and shift that the host made from d: for 0 <= n < 2^31, and for 0 <= n < 2^63
FUNCTION int divide(int n, unsigned multiplier, unsigned shift) {
    return int((__umulhi(unsigned(n), multiplier) + unsigned(n)) >> shift);
}
FUNCTION long long divide(long long n, unsigned long long multiplier, unsigned long long shift) {
    return (long long)((__umul64hi(n, multiplier) + (unsigned long long)n) >> shift);
}
FUNCTION void report(long long* status, long long number, long long position, long long value) {
    if (atomicCAS((unsigned long long*)status, 0ull, (unsigned long long)number) == 0) {
        status[1] = position;
        status[2] = value;
    }
}
// neighbouring elements, moved by one access
template <typename T, int N> struct alignas(sizeof(T) * N) Pack { T at[N]; };
// a pack, or zeros without reading: one predicated access, as a branch would wait for what it loads
#ifdef __CUDACC__
template <int bytes> struct Words { unsigned at[bytes / 4]; };
template <> struct Words<2> { unsigned short at[1]; };
template <> struct Words<1> { unsigned char at[1]; };
FUNCTION Words<16> words_if(bool wanted, const Words<16>* place) {
    Words<16> w;
    asm("{ .reg .pred p; setp.ne.u32 p, %5, 0; "
        "mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0; "
        "@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "=r"(w.at[0]), "=r"(w.at[1]), "=r"(w.at[2]), "=r"(w.at[3]) : "l"(place), "r"(unsigned(wanted)));
    return w;
}
FUNCTION Words<8> words_if(bool wanted, const Words<8>* place) {
    Words<8> w;
    asm("{ .reg .pred p; setp.ne.u32 p, %3, 0; "
        "mov.u32 %0, 0; mov.u32 %1, 0; "
        "@p ld.global.nc.v2.u32 {%0, %1}, [%2]; }"
        : "=r"(w.at[0]), "=r"(w.at[1]) : "l"(place), "r"(unsigned(wanted)));
    return w;
}
FUNCTION Words<4> words_if(bool wanted, const Words<4>* place) {
    Words<4> w;
    asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p ld.global.nc.u32 %0, [%1]; }"
        : "=r"(w.at[0]) : "l"(place), "r"(unsigned(wanted)));
    return w;
}
FUNCTION Words<2> words_if(bool wanted, const Words<2>* place) {
    Words<2> w;
    asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.u16 %0, 0; @p ld.global.nc.u16 %0, [%1]; }"
        : "=h"(w.at[0]) : "l"(place), "r"(unsigned(wanted)));
    return w;
}
template <int bytes> FUNCTION Words<bytes> words_if(bool wanted, const Words<bytes>* place) {
    return wanted ? *place : Words<bytes>{};
}
template <typename P> FUNCTION P load_if(bool wanted, const P* place) {
    Words<sizeof(P)> words = words_if(wanted, reinterpret_cast<const Words<sizeof(P)>*>(place));
    return *reinterpret_cast<P*>(&words);
}
#else
template <typename P> FUNCTION P load_if(bool wanted, const P* place) { return wanted ? *place : P{}; }
#endif
// the two aligned packs that hold a pack of elements which starts `apart` elements after the first of them;
// the second one is read where it holds any
template <typename P> struct Two { P low, high; };
template <typename P> FUNCTION Two<P> load_two(bool wanted, const P* place, int apart) {
    return {load_if(wanted, place), load_if(wanted && apart != 0, place + 1)};
}
template <typename T, int N> FUNCTION Pack<T, N> shifted(const Two<Pack<T, N>>& two, int apart) {
    constexpr int bytes = sizeof(T) * N, words = bytes < 4 ? 1 : bytes / 4;
    const int by = apart * int(sizeof(T));
    unsigned w[2 * words];
    if constexpr (bytes < 4) {
        w[0] = *(unsigned short*)&two.low, w[1] = *(unsigned short*)&two.high;
        w[0] |= w[1] << 16;
    } else {
        #pragma unroll
        for (int k = 0; k < 2 * words; ++k) w[k] = ((unsigned*)&two)[k];
    }
    #pragma unroll
    for (int step = words / 2; step > 0; step /= 2)
        if (sizeof(T) <= 4 * step) {
            #pragma unroll
            for (int k = 0; k + step < 2 * words; ++k) w[k] = by & 4 * step ? w[k + step] : w[k];
        }
    if (sizeof(T) < 4) {
        #pragma unroll
        for (int k = 0; k < words; ++k) w[k] = __funnelshift_r(w[k], w[k + 1], by * 8);
    }
    return *(Pack<T, N>*)w;
}
// stores by one access, which the compiler does not take apart, what this kernel does not read again, so that
// it displaces nothing from the cache that is
#ifdef __CUDACC__
template <typename P> FUNCTION void store_past(P* place, P value) {
    if constexpr (sizeof(P) == 16) __stcs((uint4*)place, *(uint4*)&value);
    else if constexpr (sizeof(P) == 8) __stcs((uint2*)place, *(uint2*)&value);
    else if constexpr (sizeof(P) == 4) __stcs((unsigned*)place, *(unsigned*)&value);
    else if constexpr (sizeof(P) == 2) __stcs((unsigned short*)place, *(unsigned short*)&value);
    else *place = value;
}
#else
template <typename P> FUNCTION void store_past(P* place, P value) { *place = value; }
#endif
// joining across the threads of a warp, and of a block with the help of shared memory
template <typename Join, typename T> FUNCTION T join_warp(T value, Join join) {
    for (int distance = 16; distance > 0; distance /= 2)
        value = join(value, (T)__shfl_xor_sync(~0u, value, distance));
    return value;
}
// the elements of a thread with those of the threads of its block whose numbers differ by a multiple of
// `across`, a power of two up to 32
template <int across, int width, typename Join, typename T>
FUNCTION void join_columns(T* values, Join join, T* shared) {
    #pragma unroll
    for (int lane = 0; lane < width; ++lane)
        for (int distance = across; distance < 32; distance *= 2)
            values[lane] = join(values[lane], (T)__shfl_xor_sync(~0u, values[lane], distance));
    const int columns = across * width, first = threadIdx.x % across * width, warps = blockDim.x / 32;
    __syncthreads();
    if (threadIdx.x % 32 < across)
        for (int lane = 0; lane < width; ++lane)
            shared[threadIdx.x / 32 * columns + first + lane] = values[lane];
    __syncthreads();
    for (int column = threadIdx.x; column < columns; column += blockDim.x)
        for (int warp = 1; warp < warps; ++warp)
            shared[column] = join(shared[column], shared[warp * columns + column]);
    __syncthreads();
    for (int lane = 0; lane < width; ++lane) values[lane] = shared[first + lane];
}
// column threadIdx.x of those that a block's warps read side by side, each `before` elements too early
template <int width, typename Join, typename T>
FUNCTION T join_shifted(const T* values, int before, Join join, T* shared) {
    const int columns = 33 * width, place = (threadIdx.x % 32 + 1) * width - before;
    __syncthreads();
    for (int lane = 0; lane < width; ++lane) shared[threadIdx.x / 32 * columns + place + lane] = values[lane];
    __syncthreads();
    const int column = threadIdx.x < 31 * width ? threadIdx.x + width : width;
    T result = shared[column];
    for (int warp = 1; warp < blockDim.x / 32; ++warp) result = join(result, shared[warp * columns + column]);
    return result;
}
template <typename Join, typename T> FUNCTION T join_block(T value, T identity, Join join, T* shared) {
    value = join_warp(value, join);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    if (lane == 0) shared[warp] = value;
    __syncthreads();
    return join_warp(lane < warps ? shared[lane] : identity, join);
}
"""
)
