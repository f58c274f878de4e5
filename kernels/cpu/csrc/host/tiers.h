// Tiers: cheaper sweeps with bounds of their own, which decide the pairs they can before float32.
// Ranks are equal whichever tiers serve. docs/explanation/exactness.md derives each bound.
#pragma once
#include <cstdint>

namespace kgfast {

// Bits of a mask, in the order of TIERS in kernels/cpu/tiers.py.
// `forced` makes tiers serve at any cost: for tests.
enum class Tier : unsigned { fp16 = 1, bf16 = 2, int8 = 4, linear = 8, bytes = 16, forced = 256 };

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

struct HalfTier;
struct Int8Tier;
struct LinearTier;
struct Isa;

// Returns a tier of half.h, int8.h or linear.h; nullptr where this build lacks the tier.
const HalfTier* avx512fp16_tier();
const Int8Tier* amx_tier();
const Int8Tier* avx512vnni_int8_tier();
const Int8Tier* avx2_int8_tier();
const Int8Tier* neon_int8_tier();
const LinearTier* avx512vnni_tier();

// Returns the fastest int8 tier of this machine beside an instruction set, or nullptr.
const Int8Tier* find_int8_tier(const Isa& isa);

}  // namespace kgfast
