// Decides whether the int8 tier serves a sweep, packs the queries of a pass, and sweeps.
#pragma once
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "host/int8.h"
#include "host/passes.h"

namespace kgfast {

// Cycles, measured on a Xeon (2.1 GHz): the cost of a pair whose row is read again, the cost of a
// survivor, the cost of packing a candidate beyond float32's, and the saving of a number that a
// ready panel spares float32.
constexpr double kInt8Gather = 128.0, kInt8Survivor = 1600.0, kInt8Packing = 60.0, kInt8Read = 0.3;

class Int8Pass {
 public:
  // `k`: the best k are wanted, whose survivors cost a part of the saving; 0: none.
  Int8Pass(const Execution& execution, const SweepJob& job, int64_t k)
      : tier_(execution.may_use(Tier::int8) ? int8_tier_of(execution.isa) : nullptr),
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

  // True if the tier sweeps a pass of so many queries. With ready panels few queries are enough, as
  // float32 would read and pack twice the bytes.
  bool serves(int64_t queries) const {
    const double packing = ready_ ? -kInt8Read * static_cast<double>(features_) : kInt8Packing;
    return tier_ && (is_forced_ || saving_ * static_cast<double>(queries) >= packing);
  }

  // Returns the number of groups. A group is whole panels of this tier and of float32, so that a
  // worker may go on in float32 where rows lose too much in bytes.
  int64_t groups(int64_t candidates) const { return divide_up(candidates, group_); }

  // Calls sweep(panel) for the panels of a group, or sweep_wide(index) for its float32 panels.
  template <class Sweep, class Wide>
  void sweep_group(int64_t group, char* memory, Worker& worker, Sweep sweep, Wide sweep_wide) {
    const SweepJob& job = *job_.sweep;
    const int64_t first = group * group_, last = std::min(first + group_, job.num_candidates);
    if (!pays(worker)) {
      for (int64_t at = first; at < last; at += job.facts.lanes) sweep_wide(at / job.facts.lanes);
      return;
    }
    for (int64_t at = first; at < last; at += kInt8Candidates) {
      const int64_t panel = at / kInt8Candidates;
      if (ready_) {
        const char* packed = ready_ + panel * int8_panel_bytes(features_);
        const bool is_last = at + kInt8Candidates >= job.num_candidates;
        tier_->check_panel(job, panel, packed, worker);
        const char* next = packed + (is_last ? 0 : int8_panel_bytes(features_));
        sweep(Int8Panel{panel, packed, next, memory});
      } else {
        tier_->pack_words(job, panel, scratch(memory), memory, worker);
        sweep(Int8Panel{panel, memory, nullptr, nullptr});
      }
    }
  }
  const Int8Tier& tier() const { return *tier_; }
  const Int8Job& job() const { return job_; }

  // Bytes of a worker: the panel, and scratch for packing.
  int64_t worker_bytes(int64_t queries) const {
    return serves(queries) ? int8_panel_bytes(features_) + int8_scratch_bytes(features_) : 0;
  }
  char* scratch(char* memory) const { return memory + int8_panel_bytes(features_); }

  // Packs the queries of a pass.
  void pack(const SweepJob& sweep) {
    const int64_t bytes = divide_up(sweep.num_queries, kInt8Queries) * int8_tile_bytes(features_);
    if (bytes_ < bytes) {
      tiles_ = std::make_unique<Buffer<int8_t>>(bytes);
      floats_ = std::make_unique<Buffer<float>>(bytes / 2);
      bytes_ = bytes;
    }
    queries_.resize(sweep.num_queries);
    tier_->pack_queries(sweep, tiles_->data, floats_->data, queries_.data());
    find_slopes();
    job_.sweep = &sweep;
    job_.tiles = tiles_->data;
    job_.floats = floats_->data;
    job_.queries = queries_.data();
    const bool rounded = sweep.rows.view.dtype == DType::f64 || sweep.query.dtype == DType::f64;
    // Each of 64 sums has at most features / 64 + 1 terms, and a tree of 6 levels adds the sums.
    // The canonical score has D + 8 roundings.
    const int64_t roundings = features_ / 64 + 8 + (rounded ? 3 : 0);
    job_.near = round_up(static_cast<double>(roundings) * 0x1p-24 * (1.0 + 0x1p-10) +
                         static_cast<double>(features_ + 8) * 0x1p-52);
  }

  // Sets the targets of the queries; `scores` are canonical scores, by slot.
  void set_targets(const double* scores, double bias) {
    const SweepJob& sweep = *job_.sweep;
    targets_.clear();
    for (int64_t i = 0; i < sweep.num_queries; ++i)
      for (int64_t t = sweep.first_threshold[i]; t < sweep.first_threshold[i + 1]; ++t) {
        const int64_t slot = sweep.thresholds[t].slot;
        const Int8Query& query = queries_[i];
        targets_.push_back({slot, static_cast<uint32_t>(i),
                            static_cast<float>(-scores[slot] * double{query.inverse}),
                            base(query, std::fabs(scores[slot]) + bias), query});
      }
    job_.targets = targets_.data();
  }

  // Sets the bases of the best k; the consumer bounds the rounding of limits.
  void set_bases(double bias) {
    bases_.clear();
    for (const Int8Query& query : queries_) bases_.push_back(base(query, bias));
    job_.base = bases_.data();
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
    return kInt8Gather * (static_cast<double>(worker.pairs.gathered) - free) <= saving * swept;
  }

  // Returns the panels of a run. A worker prefetches a run's next panel while it sweeps one.
  static int64_t panel_run(const SweepJob& job, int threads, int64_t most) {
    const int64_t panels = divide_up(job.num_candidates, kInt8Candidates);
    return std::clamp<int64_t>(panels / (8 * std::max(threads, 1)), 1, most);
  }

  // Returns the error that comparing numbers up to `magnitude` adds to a query.
  static float base(const Int8Query& query, double magnitude) {
    const double inverse = query.inverse;
    return round_up((16.0 * 0x1p-24 * magnitude + 0x1p-120) * inverse * (1.0 + 0x1p-20) + 0x1p-120);
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
      query.slope = round_up(std::max(size, shared) * (1.0 + 0x1p-20));
      query.high_slope = round_up(std::max(size + rounding, shared) * (1.0 + 0x1p-20));
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
  std::unique_ptr<Buffer<float>> floats_;  // numbers of the queries
  std::vector<Int8Query> queries_;
  std::vector<Int8Target> targets_;
  std::vector<float> bases_;
  Int8Job job_{};
};

}  // namespace kgfast
