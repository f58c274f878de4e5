// Holds one instruction set's vectors against plain C++, lane by lane, bit by bit. Compiled with
// -DHEADER="simd/....h" by tests/kernels/cpu/test_simd.py; prints what differs, and exits with 1.
#include HEADER

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

namespace {

using kgfast::Simd;
using V = Simd::V;
constexpr int W = Simd::W;
int failures = 0;

uint32_t bits(float x) {
  uint32_t word;
  std::memcpy(&word, &x, sizeof word);
  return word;
}

float from_bits(uint32_t word) {
  float x;
  std::memcpy(&x, &word, sizeof x);
  return x;
}

void expect(const char* what, float got, float wanted, float a, float b, float c) {
  if (bits(got) == bits(wanted) || (std::isnan(got) && std::isnan(wanted))) return;
  if (++failures <= 20)
    std::printf("%s(%a, %a, %a): %a instead of %a\n", what, a, b, c, got, wanted);
}

// Holds a function of three vectors against one of three numbers.
template <class Vector, class Scalar>
void check(const char* what, const std::vector<float>& values, Vector vector, Scalar scalar) {
  const size_t n = values.size();
  float a[W], b[W], c[W], out[W];
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; j += W) {
      for (int lane = 0; lane < W; ++lane) {
        a[lane] = values[i];
        b[lane] = values[(j + lane) % n];
        c[lane] = values[(3 * i + 5 * (j + lane) + 1) % n];
      }
      Simd::store(out, vector(Simd::load(a), Simd::load(b), Simd::load(c)));
      for (int lane = 0; lane < W; ++lane)
        expect(what, out[lane], scalar(a[lane], b[lane], c[lane]), a[lane], b[lane], c[lane]);
    }
}

float fused(float a, float b, float c) { return Simd::fuses ? std::fma(a, b, c) : a * b + c; }

// Compares relative errors, as reciprocal roots are not rounded correctly everywhere.
void check_roots(double allowed) {
  for (float m : {0x1p-124f, 1e-30f, 0.3f, 1.0f, 2.0f, 3.0f, 1e10f, 1.7e38f}) {
    float out[W];
    Simd::store(out, Simd::add_sqrt(Simd::zero(), Simd::set1(m)));
    const double error = std::fabs(out[W - 1] / std::sqrt(static_cast<double>(m)) - 1);
    if (!(error <= allowed) && ++failures) std::printf("add_sqrt(%a): off by %g\n", m, error);
    Simd::store(out, Simd::add_two_sqrt(Simd::zero(), Simd::set1(m)));
    const double twice = std::fabs(out[0] / (2 * std::sqrt(static_cast<double>(m))) - 1);
    if (!(twice <= 0x1p-21) && ++failures) std::printf("add_two_sqrt(%a): off by %g\n", m, twice);
    Simd::store(out, Simd::two_over_sqrt(Simd::set1(3.0f), Simd::set1(m)));
    const double over = std::fabs(out[0] * std::sqrt(static_cast<double>(m)) / 6 - 1);
    if (!(over <= 0x1p-21) && ++failures) std::printf("two_over_sqrt(%a): off by %g\n", m, over);
  }
}

void check_masks_and_turns() {
  float a[W], b[W], c[W], s[W], turns[W];
  for (int shift = 0; shift < 8; ++shift) {
    uint32_t wanted = 0;
    for (int lane = 0; lane < W; ++lane) {
      a[lane] = static_cast<float>((lane * 7 + shift) % 5);
      b[lane] = static_cast<float>((lane * 3 + 2) % 5);
      wanted |= static_cast<uint32_t>(a[lane] < b[lane]) << lane;
      turns[lane] = from_bits(bits(0x1.8p23f) + static_cast<uint32_t>(lane + shift));
    }
    if (Simd::less(Simd::load(a), Simd::load(b)) != wanted && ++failures) std::printf("less\n");
    V cosine = Simd::set1(0.75f), sine = Simd::set1(0.25f);
    Simd::turn_right_angles(Simd::load(turns), &cosine, &sine);
    Simd::store(c, cosine);
    Simd::store(s, sine);
    const float cosines[] = {0.75f, -0.25f, -0.75f, 0.25f}, sines[] = {0.25f, 0.75f, -0.25f, -0.75f};
    for (int lane = 0; lane < W; ++lane) {
      expect("cosine", c[lane], cosines[(lane + shift) % 4], turns[lane], 0, 0);
      expect("sine", s[lane], sines[(lane + shift) % 4], turns[lane], 0, 0);
    }
  }
}

void check_transpose() {
  constexpr int stride = W + 3;
  std::vector<float> source(W * 2 * W), out(W * stride, -1.0f);
  const float* rows[W];
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<float>(i);
  for (int i = 0; i < W; ++i) rows[i] = source.data() + i * 2 * W;
  Simd::transpose(rows, 1, out.data(), stride);
  for (int j = 0; j < W; ++j)
    for (int i = 0; i < W; ++i)
      expect("transpose", out[j * stride + i], rows[i][1 + j], static_cast<float>(i),
             static_cast<float>(j), 0);
}

#if defined(CHECKS_BYTES)
using kgfast::Bytes;
constexpr int kBytes = Bytes::W;

void expect_int(const char* what, int got, int wanted, int lane) {
  if (got == wanted) return;
  std::printf("%s: %d instead of %d in lane %d\n", what, got, wanted, lane);
  ++failures;
}

// Checks unsigned bytes a and b, signed bytes s, and numbers that begin a sum.
void check_bytes(const uint8_t* a, const uint8_t* b, const int8_t* s, const int32_t* begin) {
  const Bytes::B x = Bytes::load(a), y = Bytes::load(b);
  const auto bytes = [&](const char* what, Bytes::B got, int (*wanted)(int, int)) {
    uint8_t lanes[kBytes];
    std::memcpy(lanes, &got, sizeof lanes);
    for (int i = 0; i < kBytes; ++i) expect_int(what, lanes[i], wanted(a[i], b[i]), i);
  };
  bytes("max", Bytes::max(x, y), [](int c, int d) { return c > d ? c : d; });
  bytes("min", Bytes::min(x, y), [](int c, int d) { return c < d ? c : d; });
  bytes("distance", Bytes::distance(x, y), [](int c, int d) { return c > d ? c - d : d - c; });
  const Bytes::I from = Bytes::load_ints(begin);
  int32_t squares[W], pairs[W / 2];
  Bytes::store_ints(squares, Bytes::add_squares(Bytes::add(from, from), x));
  Bytes::store_pairs(pairs, Bytes::add_distances(from, x, y));
  for (int lane = 0; lane < W; ++lane) {
    int square = 2 * begin[lane], distance = 0;
    for (int i = 4 * lane; i < 4 * lane + 4; ++i) square += a[i] * a[i];
    expect_int("add_squares", squares[lane], square, lane);
    if (lane % 2) continue;
    for (int i = 4 * lane; i < 4 * lane + 8; ++i) distance += std::abs(a[i] - b[i]);
    expect_int("add_distances", pairs[lane / 2], begin[lane] + begin[lane + 1] + distance, lane);
  }
  Bytes::I low = Bytes::zero(), high = Bytes::zero();
  Bytes::add_larger<85, 13, 72, 47>(low, high, x, y);
  Bytes::store_pairs(pairs, Bytes::fold(low, high));
  for (int lane = 0; lane < W / 2; ++lane) {
    int larger = 0;
    for (int i = 8 * lane; i < 8 * lane + 8; ++i) {
      const int steep = 85 * a[i] + 13 * b[i], flat = 72 * a[i] + 47 * b[i];
      larger += steep > flat ? steep : flat;
    }
    expect_int("add_larger", pairs[lane], larger, lane);
  }
  float floats[W];
  uint8_t stored[W];
  for (int lane = 0; lane < W; ++lane) floats[lane] = static_cast<float>(s[lane]) + 0.49f;
  const Bytes::I whole = Bytes::round(Simd::load(floats));
  Bytes::store_bytes(stored, whole);
  Simd::store(floats, Bytes::to_floats(whole));
  for (int lane = 0; lane < W; ++lane) {
    expect_int("store_bytes", stored[lane], s[lane] + 128, lane);
    expect_int("to_floats", static_cast<int>(floats[lane]), s[lane], lane);
  }
}

int16_t word_of(const void* words, int i) {
  int16_t word;
  std::memcpy(&word, static_cast<const char*>(words) + 2 * i, sizeof word);
  return word;
}

// Checks words of signed bytes a and b, and numbers that begin a sum.
void check_words(const int8_t* a, const int8_t* b, const int32_t* begin) {
  Bytes::B first, last;
  Bytes::join(Bytes::load(a), Bytes::load(b), &first, &last);
  for (int i = 0; i < kBytes / 2; ++i) {  // two words of four bytes stand in each
    const int of_first = i / 2 * 4 + i % 2, of_last = of_first + 2;
    const auto joined = [&](int at) { return static_cast<int16_t>(256 * a[at] + b[at]); };
    expect_int("join, first", word_of(&first, i), joined(of_first), i);
    expect_int("join, last", word_of(&last, i), joined(of_last), i);
  }
  char stored[kBytes];
  Bytes::store(stored, first);
  const Bytes::B wide = Bytes::load_widened(b);
  for (int i = 0; i < kBytes / 2; ++i) {
    expect_int("store", word_of(stored, i), word_of(&first, i), i);
    expect_int("load_widened", word_of(&wide, i), b[i], i);
  }
#if !defined(__AVX512F__) || defined(__AVX512VNNI__)
  int32_t products[W];
  Bytes::store_ints(products, Bytes::add_word_products(Bytes::load_ints(begin), first, last));
  for (int lane = 0; lane < W; ++lane) {
    int64_t product = begin[lane];
    for (int i = 2 * lane; i < 2 * lane + 2; ++i)
      product += static_cast<int64_t>(word_of(&first, i)) * word_of(&last, i);
    if (product == static_cast<int32_t>(product))
      expect_int("add_word_products", products[lane], static_cast<int>(product), lane);
  }
#endif
  float floats[W];
  int16_t narrow[W];
  for (int lane = 0; lane < W; ++lane) floats[lane] = 256.0f * a[lane] + b[lane];
  Bytes::store_words(narrow, Bytes::round(Simd::load(floats)));
  for (int lane = 0; lane < W; ++lane)
    if (std::fabs(floats[lane]) < 0x1p15f)
      expect_int("store_words", narrow[lane], static_cast<int>(floats[lane]), lane);
}

void check_all_bytes() {
  uint8_t a[kBytes], b[kBytes];
  int8_t s[kBytes];
  int32_t begin[W];
  uint32_t state = 1;
  const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  for (int turn = 0; turn < 500; ++turn) {
    for (int i = 0; i < kBytes; ++i) {  // a third of the turns draws the ends of the ranges
      const bool ends = turn % 3 == 0;
      constexpr int most = 127;
      a[i] = static_cast<uint8_t>(ends ? next() % 2 * 255 : next());
      b[i] = static_cast<uint8_t>(ends ? next() % 2 * 255 : next());
      const int signed_one = static_cast<int>(next() % (2 * most + 1)) - most;
      s[i] = static_cast<int8_t>(ends ? (turn % 2 ? most : -most) : signed_one);
    }
    for (int32_t& it : begin) it = static_cast<int32_t>(next()) - (1 << 23);
    check_bytes(a, b, s, begin);
    check_words(reinterpret_cast<const int8_t*>(a), s, begin);
    const Bytes::B run = Bytes::set_run(a), word = Bytes::set_word(a);
    for (int i = 0; i < kBytes; ++i) {
      expect_int("set_run", reinterpret_cast<const uint8_t*>(&run)[i], a[i % 8], i);
      expect_int("set_word", reinterpret_cast<const uint8_t*>(&word)[i], a[i % 4], i);
    }
  }
}
#endif

}  // namespace

int main() {
#if defined(CHECKS_BYTES)
  check_all_bytes();
#endif
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const std::vector<float> values = {0.0f,   -0.0f,   1.0f,       -1.0f,      0x1.fffffep-1f,
                                     3.0f,   -7.25f,  1e-30f,     -1e-20f,    0x1.000002p0f,
                                     1e20f,  -3e38f,  0x1p-126f,  -0x1p-140f, 0x1.921fb6p1f,
                                     inf,    -inf,    nan,        0.1f,       -0x1.555556p-2f};
  using F = float;
  check("add", values, [](V a, V b, V) { return Simd::add(a, b); }, [](F a, F b, F) { return a + b; });
  check("sub", values, [](V a, V b, V) { return Simd::sub(a, b); }, [](F a, F b, F) { return a - b; });
  check("mul", values, [](V a, V b, V) { return Simd::mul(a, b); }, [](F a, F b, F) { return a * b; });
  check("div", values, [](V a, V b, V) { return Simd::div(a, b); }, [](F a, F b, F) { return a / b; });
  check("fma", values, [](V a, V b, V c) { return Simd::fma(a, b, c); }, fused);
  check("minus_product", values, [](V a, V b, V c) { return Simd::minus_product(a, b, c); },
        [](F a, F b, F c) { return fused(-a, b, c); });
  check("product_minus", values, [](V a, V b, V c) { return Simd::product_minus(a, b, c); },
        [](F a, F b, F c) { return fused(a, b, -c); });
  check("abs", values, [](V, V b, V) { return Simd::abs(b); }, [](F, F b, F) { return std::fabs(b); });
  check("max", values, [](V a, V b, V) { return Simd::max(Simd::add(a, Simd::zero()), b); },
        [](F a, F b, F) { return a + 0.0f > b ? a + 0.0f : b; });
  check("min", values, [](V a, V b, V) { return Simd::min(Simd::add(a, Simd::zero()), b); },
        [](F a, F b, F) { return a + 0.0f < b ? a + 0.0f : b; });
  check("sqrt", values, [](V, V b, V) { return Simd::sqrt(Simd::abs(b)); },
        [](F, F b, F) { return std::sqrt(std::fabs(b)); });
  check("where_negative", values, [](V a, V b, V c) { return Simd::where_negative(a, b, c); },
        [](F a, F b, F c) { return a < 0.0f ? b : c; });
  check("signed_by", values, [](V a, V b, V) { return Simd::signed_by(Simd::abs(a), b); },
        [](F a, F b, F) { return b == 0.0f ? 0.0f : std::copysign(std::fabs(a), b); });
  std::vector<float> powers;
  for (int n = -127; n <= 127; ++n) powers.push_back(static_cast<float>(n));
  check("power_of_two", powers, [](V, V b, V) { return Simd::power_of_two(b); },
        [](F, F b, F) { return b == -127.0f ? 0.0f : std::ldexp(1.0f, static_cast<int>(b)); });
  check_roots(1.01 * Simd::sqrt_error + 0x1p-24);
  check_masks_and_turns();
  check_transpose();
  std::printf("%d differ\n", failures);
  return failures != 0;
}
