// Tiers: cheaper sweeps with bounds of their own, which decide the pairs they can before float32.
// Ranks are equal whichever tiers serve. docs/explanation/exactness.md derives each bound.
#pragma once
#include <cstdint>

namespace kgfast {

// Bits of a mask, in the order of TIERS in kernels/cpu/tiers.py.
// `forced` makes tiers serve at any cost: for tests.
enum class Tier : unsigned { int8 = 1, linear = 2, bytes = 4, forced = 256 };

// Outcomes of pairs.
struct TierPairs {
  int64_t swept, gathered, canonical;
};

// Outcomes of all pairs of a ranking, in the rows and columns that kernels/cpu/tiers.py names:
// first the total, then the tier of each bit of a mask.
constexpr int kMostTiers = 8;
using PairCounts = int64_t[1 + kMostTiers][4];

// Pause before a worker tries fewer bytes of a panel first again: a number of panels. The pause
// doubles while the bytes leave much of a panel open.
struct BytesPause {
  int64_t left, length;
};

struct Int8Tier;
struct LinearTier;
struct Isa;

// Tables like those of job.h.
extern const Int8Tier *const avx512vnni_int8_tier, *const avx2_int8_tier, *const neon_int8_tier;
extern const LinearTier* const avx512vnni_tier;

// The fastest kernels of this machine and build beside an instruction set; nullptr: none.
struct Tiers {
  const LinearTier* linear;
  const Int8Tier* int8;
};

// Returns the tiers beside an instruction set that find_isa returned.
const Tiers& tiers_of(const Isa& isa);

}  // namespace kgfast
