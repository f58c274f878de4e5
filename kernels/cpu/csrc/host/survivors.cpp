// The survivors of top-k: intervals of their costs, and a buffer per worker and query.
//
// A buffer holds every candidate seen that may be among the best k. When the buffer is full, the
// k-th lowest high end becomes the query's limit, and survivors above the limit are dropped; the k
// most promising get canonical scores first where their high ends are unknown. If too many are left
// (a table of like rows), canonical scores decide and k stay. So nothing overflows, and each round
// frees at least half of the room beyond k.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "host/fpmode.h"
#include "host/passes.h"
#include "host/topk.h"

namespace kgfast {

bool is_better(const Scored& a, const Scored& b) {
  const bool a_is_nan = std::isnan(a.score), b_is_nan = std::isnan(b.score);
  if (a_is_nan != b_is_nan) return b_is_nan;
  if (!a_is_nan && a.score != b.score) return a.score > b.score;
  return a.candidate < b.candidate;
}

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Lowers a limit, which other workers may lower at the same time, and which never rises.
void lower_limit(const SweepJob& job, int64_t position, float limit) {
  float seen = limit_of(job, position);
  while (limit < seen && !__atomic_compare_exchange(job.limits + position, &seen, &limit, true,
                                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

Survivor exactly(const Scored& scored) {  // a NaN costs more than everything
  if (std::isnan(scored.score)) return {kInfinity, kInfinity, scored.candidate};
  return {round_down(-scored.score), round_up(-scored.score), scored.candidate};
}

// Returns the canonical scores of some survivors.
std::vector<Scored> scores_of(const SweepJob& job, int64_t position, const Survivor* survivors,
                              int64_t count, Worker& worker) {
  std::vector<Pair> pairs(count);
  std::vector<double> scores(count);
  std::vector<Scored> scored(count);
  for (int64_t i = 0; i < count; ++i)
    pairs[i] = {job.query_ids[position], survivors[i].candidate};
  job.isa->canonical(job, job.num_features, pairs.data(), count, worker.scratch, scores.data());
  for (int64_t i = 0; i < count; ++i) scored[i] = {scores[i], survivors[i].candidate};
  return scored;
}

// Replaces the survivors of a query by the best k of them, with their canonical scores.
void resolve(const SweepJob& job, int64_t position, Worker& worker) {
  Survivor* survivors = worker.survivors + position * job.capacity;
  std::vector<Scored> scored = scores_of(job, position, survivors, worker.kept[position], worker);
  std::nth_element(scored.begin(), scored.begin() + job.k - 1, scored.end(), is_better);
  for (int64_t i = 0; i < job.k; ++i) survivors[i] = exactly(scored[i]);
  worker.kept[position] = job.k;
  lower_limit(job, position, survivors[job.k - 1].high);  // the worst of the k
}

}  // namespace

void settle(const SweepJob& job, int64_t position, Worker& worker) {
  if (job.question != Question::keep) return;
  Survivor* first = worker.survivors + position * job.capacity;
  Survivor* last = first + worker.kept[position];
  if (last - first >= job.k) {
    std::nth_element(first, first + job.k - 1, last,
                     [](const Survivor& a, const Survivor& b) { return a.low < b.low; });
    Survivor* unknown = std::partition(first, first + job.k, [](const Survivor& survivor) {
      return survivor.high < kInfinity;
    });
    const int64_t count = first + job.k - unknown;
    if (count)
      for (const Scored& scored : scores_of(job, position, unknown, count, worker))
        *unknown++ = exactly(scored);
    std::nth_element(first, first + job.k - 1, last,
                     [](const Survivor& a, const Survivor& b) { return a.high < b.high; });
    lower_limit(job, position, first[job.k - 1].high);
  }
  const float limit = limit_of(job, position);
  last = std::remove_if(first, last, [&](const Survivor& one) { return one.low > limit; });
  worker.kept[position] = last - first;
  if (last - first > (job.k + job.capacity) / 2) resolve(job, position, worker);
}

void keep_lanes(const SweepJob& job, int64_t position, int64_t first, uint64_t open,
                const float* lows, const float* highs, Worker& worker) {
  const FloatMode mode(FloatMode::kIeee);  // the sweep flushes denormals
  for (; open; open &= open - 1) {
    const int lane = __builtin_ctzll(open);
    const int64_t candidate = candidate_of(job, first + lane);
    const float low = std::isnan(lows[lane]) ? -kInfinity : lows[lane];
    const float high = std::isnan(highs[lane]) ? kInfinity : highs[lane];
    if (low > limit_of(job, position)) continue;
    if (std::binary_search(job.known + job.first_known[position],
                           job.known + job.first_known[position + 1], candidate))
      continue;
    if (worker.kept[position] == job.capacity) settle(job, position, worker);
    worker.survivors[position * job.capacity + worker.kept[position]++] = {low, high, candidate};
  }
}

}  // namespace kgfast
