// Decides whether the int8 tier serves a sweep, packs the queries of a pass, and sweeps.
#pragma once
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "host/int8.h"
#include "host/passes.h"

namespace kgfast {

// Cycles, measured on a Xeon (2.1 GHz): the cost of a pair whose rows are read again, the cost of a
// survivor, the cost of packing a candidate beyond float32's, and the saving of a number that a
// ready panel spares float32.
constexpr double kInt8Gather = 128.0, kInt8Survivor = 1600.0, kInt8Packing = 60.0, kInt8Read = 0.3;

class Int8Pass {
 public:
  // `k`: the best k are wanted, whose survivors cost a part of the saving; 0: none.
  Int8Pass(const Execution& execution, const SweepJob& job, int64_t k)
      : tier_(execution.may_use(Tier::int8) ? execution.isa.int8 : nullptr),
        is_forced_(execution.may_use(Tier::forced)), features_(job.num_features),
        ready_(job.packed.features == features_ && !job.has_subset ? job.packed.int8 : nullptr),
        group_(std::lcm(kInt8Candidates, int64_t{job.facts.lanes}) *
               panel_run(job, execution.threads, ready_ ? 16 : 8)),
        k_(k) {
    const bool is_plain = job.facts.terms == Terms::products && job.facts.planes == 1;
    if (!is_plain || job.num_crops != 1 || features_ > kInt8MostFeatures) tier_ = nullptr;
    if (tier_) saving_ = static_cast<double>(features_) / tier_->features_per_cycle - 0.4;
    if (k) saving_ -= kInt8Survivor * static_cast<double>(k + 10) / job.num_candidates;
  }

  // True if the tier sweeps a pass of `queries` queries. With panels of an index few queries are
  // enough: float32 would read and pack twice the bytes.
  bool serves(int64_t queries) const {
    const double packing = ready_ ? -kInt8Read * static_cast<double>(features_) : kInt8Packing;
    return tier_ && (is_forced_ || saving_ * static_cast<double>(queries) >= packing);
  }

  // Returns the number of groups. A group is whole panels of this tier and of float32, so that a
  // worker may go on in float32 where rows lose too much in bytes.
  int64_t groups(int64_t candidates) const { return divide_up(candidates, group_); }

  // Sweeps the panels of a group, or its float32 panels.
  void sweep_group(int64_t group, char* memory, Worker& worker) const {
    const SweepJob& job = *job_.sweep;
    const int64_t first = group * group_, last = std::min(first + group_, job.num_candidates);
    if (!pays(worker)) {
      for (int64_t at = first; at < last; at += job.facts.lanes)
        job.isa->sweep_panel(job, at / job.facts.lanes, worker);
      return;
    }
    for (int64_t at = first; at < last; at += kInt8Candidates) {
      const int64_t panel = at / kInt8Candidates;
      if (ready_) {
        const char* packed = ready_ + panel * int8_panel_bytes(features_);
        const bool is_last = at + kInt8Candidates >= job.num_candidates;
        const char* next = packed + (is_last ? 0 : int8_panel_bytes(features_));
        tier_->sweep_panel(job_, {panel, packed, next, memory}, worker);
      } else {
        tier_->pack_words(job, panel, memory + int8_panel_bytes(features_), memory, worker);
        tier_->sweep_panel(job_, {panel, memory, nullptr, nullptr}, worker);
      }
    }
  }

  static constexpr int64_t kPairsAtOnce = 64;

  // Bounds the costs of pairs, but for a bias, by products in float32. Each of 64 sums has at
  // most features / 64 + 1 terms, and a tree of 6 levels adds the sums. The canonical score has
  // D + 8 roundings. Norms are upper bounds: flushed squares are below 2^-126.
  void find_costs(const Pair* pairs, int64_t count, char* memory, double* lows,
                  double* highs) const {
    const SweepJob& job = *job_.sweep;
    const bool rounded = job.is_rounded();
    const double d = static_cast<double>(features_);
    const int64_t steps = features_ / 64 + 8 + (rounded ? 3 : 0);
    const double roundings = static_cast<double>(steps);
    const double near = roundings * 0x1p-24 * (1.0 + 0x1p-10) + (d + 8.0) * 0x1p-52;
    float products[kPairsAtOnce][3];
    tier_->near(job, pairs, count, reinterpret_cast<float*>(memory + int8_panel_bytes(features_)),
                products[0]);
    const auto norm = [&](float squares) {
      return std::sqrt(double{squares}) * (1.0 + (d + 16.0) * 0x1p-22) + d * 0x1p-62;
    };
    for (int64_t i = 0; i < count; ++i) {
      const double of_query = norm(products[i][1]), of_row = norm(products[i][2]);
      // A product that overflowed tells nothing, although its norms did not.
      const double off = std::isfinite(products[i][0])
                             ? near * of_query * of_row + d * 0x1p-124 * (1.0 + of_query + of_row)
                             : INFINITY;
      lows[i] = -products[i][0] - off;
      highs[i] = -products[i][0] + off;
    }
  }

  // Bytes of a worker, for passes of up to `queries` queries: the panel, and scratch for packing.
  int64_t worker_bytes(int64_t queries) const {
    const bool may_serve = serves(1) || serves(queries);
    return may_serve ? int8_panel_bytes(features_) + int8_scratch_bytes(features_) : 0;
  }

  // Packs the queries of a pass; `bias`: the largest magnitude of a bias.
  void pack(const SweepJob& sweep, double bias) {
    const int64_t bytes = divide_up(sweep.num_queries, kInt8Queries) * int8_tile_bytes(features_);
    if (bytes_ < bytes) {
      tiles_ = std::make_unique<Buffer<int8_t>>(bytes);
      bytes_ = bytes;
    }
    queries_.resize(sweep.num_queries);
    tier_->pack_queries(sweep, tiles_->data, queries_.data());
    find_slopes();
    job_.sweep = &sweep;
    job_.tiles = tiles_->data;
    job_.queries = queries_.data();
    job_.base = bias > kMostBias ? INFINITY : round_up(16.0 * 0x1p-24 * bias + 0x1p-119);
  }

 private:
  // True if a worker should go on with the tier, judged by its earlier pairs. For the best k every
  // query has survivors while its limit falls.
  bool pays(const Worker& worker) const {
    if (is_forced_) return true;
    const double swept = static_cast<double>(worker.pairs.swept);
    const double all = static_cast<double>(job_.sweep->num_queries);
    double free = 1024.0;
    if (k_) {
      const double kept = static_cast<double>(2 * k_ + 32);
      free += 2.0 * all * kept * (1.0 + std::max(0.0, std::log(swept / all / kept)));
    }
    const double saving =
        saving_ + (ready_ ? kInt8Read * static_cast<double>(features_) / all : 0.0);
    return kInt8Gather * (static_cast<double>(worker.pairs.left) - free) <= saving * swept;
  }

  // Returns the panels of a run. A worker prefetches a run's next panel while it sweeps one.
  static int64_t panel_run(const SweepJob& job, int threads, int64_t most) {
    const int64_t panels = divide_up(job.num_candidates, kInt8Candidates);
    return std::clamp<int64_t>(panels / (8 * std::max(threads, 1)), 1, most);
  }

  // Finds the share that nine queries of ten keep within; other queries get larger slopes.
  void find_slopes() {
    std::vector<float> shares;
    for (const Int8Query& query : queries_)
      if (query.rounding / query.size <= 1.0f) shares.push_back(query.rounding / query.size);
    const auto place = shares.begin() + static_cast<int64_t>(shares.size()) * 9 / 10;
    if (!shares.empty()) std::nth_element(shares.begin(), place, shares.end());
    job_.rounding_share = shares.empty() ? 1.0f : *place;
    for (Int8Query& query : queries_) {
      const double size = query.size, rounding = query.rounding;
      const double shared = rounding / job_.rounding_share;
      const double scale = query.scale * (1.0 + 0x1p-20);
      query.slope = round_up(std::max(size, shared) * scale);
      query.high_slope = round_up(std::max(size + rounding, shared) * scale);
    }
  }

  const Int8Tier* tier_;
  const bool is_forced_;
  const int64_t features_;
  const char* const ready_;
  const int64_t group_, k_;
  double saving_ = 0.0;  // cycles that a pair saves
  int64_t bytes_ = 0;    // bytes of tiles
  std::unique_ptr<Buffer<int8_t>> tiles_;
  std::vector<Int8Query> queries_;
  Int8Job job_{};
};

}  // namespace kgfast
