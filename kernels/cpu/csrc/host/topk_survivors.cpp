// The survivors of top-k: certified intervals of their costs, and a buffer per worker and query.
//
// A buffer holds every candidate seen that may be among the best k. When the buffer is full, the
// k-th lowest upper end becomes the query's limit, and survivors above the limit are dropped. If
// too many are left (a table of like rows), the canonical scores decide and k stay. So nothing
// overflows, and each round frees at least half of the room beyond k.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "host/above.h"
#include "host/fpmode.h"
#include "host/load.h"
#include "host/passes.h"
#include "host/topk.h"

namespace kgfast {

bool is_better(const Scored& a, const Scored& b) {
  const bool a_is_nan = std::isnan(a.score), b_is_nan = std::isnan(b.score);
  if (a_is_nan != b_is_nan) return b_is_nan;
  if (!a_is_nan && a.score != b.score) return a.score > b.score;
  return a.candidate < b.candidate;
}

void write_best(std::vector<Scored>& scored, int64_t k, DType dtype, int64_t query, void* scores,
                int64_t* ids) {
  const int64_t count = std::min(k, static_cast<int64_t>(scored.size()));
  std::partial_sort(scored.begin(), scored.begin() + count, scored.end(), is_better);
  for (int64_t i = 0; i < k; ++i) {
    const int64_t at = query * k + i;
    const double score = i < count ? scored[i].score : -double{INFINITY};
    ids[at] = i < count ? scored[i].candidate : -1;
    if (dtype == DType::f64)
      static_cast<double*>(scores)[at] = score;
    else
      static_cast<float*>(scores)[at] = static_cast<float>(score);
  }
}

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float limit_of(const TopkJob& job, int64_t position) {
  float limit;
  __atomic_load(job.limits + position, &limit, __ATOMIC_RELAXED);
  return limit;
}

// Lowers a limit, which other workers may lower at the same time, and which never rises.
void lower_limit(const TopkJob& job, int64_t position, float limit) {
  float seen = limit_of(job, position);
  while (limit < seen && !__atomic_compare_exchange(job.limits + position, &seen, &limit, true,
                                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

bool is_known(const TopkJob& job, int64_t position, int64_t candidate) {
  return std::binary_search(job.known + job.first_known[position],
                            job.known + job.first_known[position + 1], candidate);
}

// Bounds a cost: from |v^ - v| <= rel |v| + abs follows |v^ - v| <= (rel |v^| + abs) / (1 - rel).
Survivor interval(const TopkJob& job, double absolute, float distance, int64_t candidate) {
  const double rel = job.crops->rel;
  const double error = (rel * std::fabs(distance) + absolute) / (1.0 - rel);
  if (!std::isfinite(distance) || !(rel < 1.0) || !std::isfinite(error))
    return {-kInfinity, kInfinity, candidate};
  const double cost = distance - (job.bias ? job.bias_exact[candidate] : 0.0);
  return {-round_up(error - cost), round_up(cost + error), candidate};
}

Survivor exactly(double score, int64_t candidate) {  // a NaN costs more than everything
  if (std::isnan(score)) return {kInfinity, kInfinity, candidate};
  return {-round_up(score), round_up(-score), candidate};
}

bool lies_lower(const Survivor& a, const Survivor& b) { return a.high < b.high; }

// Returns the canonical scores of some survivors.
std::vector<Scored> scores_of(const TopkJob& job, int64_t position, const Survivor* survivors,
                              int64_t count, TopkWorker& worker) {
  std::vector<Pair> pairs(count);
  std::vector<double> scores(count);
  std::vector<Scored> found(count);
  for (int64_t i = 0; i < count; ++i)
    pairs[i] = {job.query_ids[position], survivors[i].candidate};
  job.isa->canonical(job, job.num_features, pairs.data(), count, worker.scratch, scores.data());
  for (int64_t i = 0; i < count; ++i) found[i] = {scores[i], survivors[i].candidate};
  return found;
}

// Replaces the survivors of a query by the best k of them, with their canonical scores.
void resolve(const TopkJob& job, int64_t position, TopkWorker& worker) {
  Survivor* survivors = worker.survivors + position * job.capacity;
  std::vector<Scored> scored =
      scores_of(job, position, survivors, worker.counts[position], worker);
  std::nth_element(scored.begin(), scored.begin() + job.k - 1, scored.end(), is_better);
  for (int64_t i = 0; i < job.k; ++i)
    survivors[i] = exactly(scored[i].score, scored[i].candidate);
  worker.counts[position] = job.k;
  lower_limit(job, position, survivors[job.k - 1].high);  // the worst of the k
}

void compress(const TopkJob& job, int64_t position, TopkWorker& worker) {
  Survivor* first = worker.survivors + position * job.capacity;
  Survivor* last = first + worker.counts[position];
  if (last - first >= job.k) {
    std::nth_element(first, first + job.k - 1, last, lies_lower);
    lower_limit(job, position, first[job.k - 1].high);
  }
  const float limit = limit_of(job, position);
  last = std::remove_if(first, last, [&](const Survivor& it) { return it.low > limit; });
  worker.counts[position] = last - first;
  if (last - first > (job.k + job.capacity) / 2) resolve(job, position, worker);
}

void keep(const TopkJob& job, int64_t position, const Survivor& survivor, TopkWorker& worker) {
  if (survivor.low > limit_of(job, position) || is_known(job, position, survivor.candidate)) return;
  if (worker.above) return keep_above(job, position, survivor.candidate, worker);
  if (worker.counts[position] == job.capacity) compress(job, position, worker);
  worker.survivors[position * job.capacity + worker.counts[position]++] = survivor;
}

}  // namespace

void keep_survivors(const TopkJob& job, int64_t position, int64_t first, uint64_t open,
                    const float* distances, double absolute, TopkWorker& worker) {
  const FloatMode mode(FloatMode::kIeee);  // the sweep flushes denormals
  for (; open; open &= open - 1) {
    const int lane = __builtin_ctzll(open);
    const int64_t place = first + lane;
    const int64_t candidate = job.candidate_ids ? job.candidate_ids[place] : place;
    keep(job, position, interval(job, absolute, distances[lane], candidate), worker);
  }
}

void keep_open(const TopkJob& job, int64_t position, int64_t first, uint64_t open,
               const float* lows, TopkWorker& worker) {
  for (; open; open &= open - 1) {
    const int lane = __builtin_ctzll(open);
    const int64_t place = first + lane;
    const float low = std::isnan(lows[lane]) ? -kInfinity : lows[lane];
    if (worker.counts[position] == job.capacity) settle(job, position, worker);
    keep(job, position,
         {low, kInfinity, job.candidate_ids ? job.candidate_ids[place] : place}, worker);
  }
}

void settle(const TopkJob& job, int64_t position, TopkWorker& worker) {
  if (worker.above) return;
  Survivor* first = worker.survivors + position * job.capacity;
  Survivor* last = first + worker.counts[position];
  if (last - first < job.k) return;
  std::nth_element(first, first + job.k - 1, last,
                   [](const Survivor& a, const Survivor& b) { return a.low < b.low; });
  Survivor* unknown = std::partition(
      first, first + job.k, [](const Survivor& survivor) { return survivor.high < kInfinity; });
  for (const Scored& it : scores_of(job, position, unknown, first + job.k - unknown, worker))
    *unknown++ = exactly(it.score, it.candidate);
  compress(job, position, worker);
}

}  // namespace kgfast
