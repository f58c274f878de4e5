// Pauses in reading bytes before wider numbers, after panels that the bytes leave much open of.
#pragma once
#include <algorithm>

#include "host/tiers.h"

namespace kgfast {
namespace {

constexpr int64_t kLongestPause = 15;  // panels

inline void pause_bytes(bool was_worth_it, BytesPause& pause, int64_t longest = kLongestPause) {
  pause.length = was_worth_it ? 0 : std::min(2 * pause.length + 1, longest);
  pause.left = pause.length;
}

}  // namespace
}  // namespace kgfast
