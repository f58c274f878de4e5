// The floating-point mode of the calling thread, set for a scope and restored after it.
//
// The extension computes in IEEE arithmetic, rounding to nearest, whatever torch.set_flush_denormal
// or fesetround say. Bindings set this mode for the calling thread, the pool for its workers.
// Sweeps flush denormals: their bound allows it, and no assist slows them. Code that defines ranks
// sets IEEE arithmetic again, also where a sweep calls it.
#pragma once
#include <cstdint>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace kgfast {
namespace {

class FloatMode {
 public:
  enum Kind { kIeee, kFlush };
  explicit FloatMode(Kind kind) : saved_(get()) {
#if defined(__SSE2__)
    set(kind == kFlush ? 0x1F80u | 0x8040u : 0x1F80u);  // round to nearest, exceptions masked
#elif defined(__aarch64__)
    set(kind == kFlush ? uint64_t{1} << 24 : uint64_t{0});
#endif
  }
  ~FloatMode() { set(saved_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

  // Runs body in the saved mode, which body may change.
  template <class Body>
  auto outside(Body body) {
    const Word current = get();
    set(saved_);
    const auto result = body();
    saved_ = get();
    set(current);
    return result;
  }

 private:
#if defined(__SSE2__)
  using Word = unsigned;
  static Word get() { return _mm_getcsr(); }
  static void set(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static Word get() {
    Word word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void set(Word word) { asm volatile("msr fpcr, %0" ::"r"(word)); }
#else
  using Word = int;
  static Word get() { return 0; }
  static void set(Word) {}
#endif
  Word saved_;
};

}  // namespace
}  // namespace kgfast
