// Tiers: cheaper sweeps with bounds of their own, which decide the pairs they can before float32.
// Ranks are equal whichever tiers serve. docs/explanation/exactness.md derives each bound.
#pragma once
#include <cstdint>

namespace kgfast {

// Bits of a mask, in the order of TIERS in kernels/cpu/tiers.py.
// `forced` makes tiers serve at any cost: for tests.
enum class Tier : unsigned { int8 = 1, bytes = 2, forced = 256 };

// Outcomes of pairs.
struct TierPairs {
  int64_t swept, gathered, canonical;
};

// Outcomes of all pairs of a ranking, in the order of PAIRS in kernels/cpu/tiers.py: all pairs, those
// that got canonical scores, and those of the int8 tier.
struct PairCounts {
  int64_t total, canonical;
  TierPairs int8;
};

// Pause before a worker tries fewer bytes of a panel first again: a number of panels. The pause
// doubles while the bytes leave much of a panel open.
struct BytesPause {
  int64_t left, length;
};

struct Int8Tier;
struct Isa;

// A table like those of job.h; nullptr where the build lacks it.
extern const Int8Tier* const avx512vnni_int8_tier;

// Returns the fastest int8 tier of this machine and build beside an instruction set that find_isa
// returned, or nullptr.
const Int8Tier* int8_tier_of(const Isa& isa);

}  // namespace kgfast
