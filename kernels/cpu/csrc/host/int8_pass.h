// Decides whether the int8 tier serves a sweep, and packs a pass of queries.
#pragma once
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "host/int8.h"
#include "host/passes.h"

namespace kgfast {

// Cycles, measured on a Xeon with AMX (2.1 GHz): the cost of a pair whose row is read again, the
// cost of a survivor, and the saving of a number that a ready panel spares float32.
constexpr double kInt8Gather = 128.0, kInt8Survivor = 1600.0, kInt8Read = 0.3;

// Queries of a pass, packed for one kind of rows.
struct Int8Side {
  const Int8Rows* rows = nullptr;
  std::unique_ptr<Buffer<int8_t>> tiles;
  int64_t bytes = 0;  // bytes of tiles
  std::vector<Int8Query> queries;
  std::vector<Int8Target> targets;
  std::vector<float> bases;
  Int8Job job{};
};

class Int8Pass {
 public:
  Int8Pass(const Execution& execution, const SweepJob& job)
      : tier_(execution.may_use(Tier::int8) ? int8_tier_of(execution.isa) : nullptr),
        is_forced_(execution.may_use(Tier::forced)), features_(job.num_features),
        saving_(tier_ ? tier_->saving(features_) : 0.0), packing_(tier_ ? tier_->packing : 0.0),
        ready_(job.packed.features == features_ && !job.has_subset ? job.packed.int8 : nullptr),
        group_(std::lcm(kInt8Candidates, int64_t{job.facts.lanes}) *
               panel_run(job, execution.threads, ready_ ? 16 : 8)) {
    const bool is_plain = job.facts.terms == Terms::products && job.facts.planes == 1;
    if (!is_plain || job.num_crops != 1 || features_ > kInt8MostFeatures) tier_ = nullptr;
  }
  // Serves the best k, whose survivors cost a part of the saving.
  Int8Pass(const Execution& execution, const SweepJob& job, int64_t k) : Int8Pass(execution, job) {
    const double rows = static_cast<double>(job.num_candidates);
    saving_ -= kInt8Survivor * static_cast<double>(k + 10) / rows;
    k_ = k;
  }

  bool is_available() const { return tier_; }

  // True if the tier sweeps a pass of so many queries. With ready panels few queries are enough, as
  // float32 would read and pack twice the bytes.
  bool serves(int64_t queries) const {
    const double packing = ready_ ? -kInt8Read * static_cast<double>(features_) : packing_;
    return tier_ && (is_forced_ || saving_ * static_cast<double>(queries) >= packing);
  }

  // Returns the number of groups. A group is whole panels of this tier and of float32, so that a
  // worker may go on in float32 where rows lose too much in bytes.
  int64_t groups(int64_t candidates) const { return divide_up(candidates, group_); }
  int64_t group() const { return group_; }

  // True if a worker should go on with the tier, judged by its earlier pairs; pairs that bytes left
  // to words do not count. For the best k every query has survivors while its limit falls.
  bool pays(const Worker& worker, int64_t queries) const {
    if (is_forced_) return true;
    const double swept = static_cast<double>(worker.pairs.swept - worker.first.swept);
    const double gathered = static_cast<double>(worker.pairs.gathered - worker.first.gathered);
    double free = 1024.0;
    if (k_) {
      const double kept = static_cast<double>(2 * k_ + 32), all = static_cast<double>(queries);
      free += 2.0 * all * kept * (1.0 + std::max(0.0, std::log(swept / all / kept)));
    }
    double saving = saving_;
    if (ready_) saving += kInt8Read * static_cast<double>(features_) / static_cast<double>(queries);
    return kInt8Gather * (gathered - free) <= saving * swept;
  }

  // Calls sweep(side, panel) for the panels of a group.
  template <class Sweep>
  void sweep_group(const SweepJob& job, int64_t group, char* memory, Worker& worker, Sweep sweep) {
    const int64_t first = group * group_, last = std::min(first + group_, job.num_candidates);
    for (int64_t at = first; at < last; at += kInt8Candidates) {
      const int64_t panel = at / kInt8Candidates;
      if (ready_) {
        const char* packed = ready_ + panel * int8_panel_bytes(features_);
        const bool is_last = at + kInt8Candidates >= job.num_candidates;
        tier_->check_panel(job, panel, packed, worker);
        const char* next = packed + (is_last ? 0 : int8_panel_bytes(features_));
        sweep(whole_, Int8Panel{panel, packed, next, memory, -1});
      } else {
        const Int8Side& side = next_side(worker.bytes_pause);
        side.rows->pack_panel(job, panel, scratch(memory), memory, worker);
        const int64_t ahead = at + kInt8Candidates < last ? panel + 1 : -1;
        sweep(side, Int8Panel{panel, memory, nullptr, nullptr, ahead});
      }
    }
  }
  const Int8Tier& tier() const { return *tier_; }
  const Int8Job& job() const { return whole_.job; }

  // Bytes of a worker: the panel, and scratch for packing.
  int64_t worker_bytes(int64_t queries) const {
    return serves(queries) ? int8_panel_bytes(features_) + int8_scratch_bytes(features_) : 0;
  }
  char* scratch(char* memory) const { return memory + int8_panel_bytes(features_); }

  // Packs the queries of a pass.
  void pack(const SweepJob& sweep) {
    first_.rows = nullptr;
    whole_.rows = &tier_->rows;
    pack(sweep, whole_);
  }

  // Packs the queries of ranks; many queries may try rows of one byte a number first.
  void pack_ranks(const SweepJob& sweep) {
    pack(sweep);
    if (ready_ || sweep.num_queries <= kInt8Queries || !tier_->first) return;
    first_.rows = tier_->first;
    pack(sweep, first_);
  }

  // Sets the targets of the queries; `scores` are canonical scores, by slot.
  void set_targets(const double* scores, double bias) {
    set_targets(scores, bias, whole_);
    if (first_.rows) set_targets(scores, bias, first_);
  }

  // Sets the bases of the best k; the consumer bounds the rounding of limits.
  void set_bases(double bias) {
    set_bases(bias, whole_);
    if (first_.rows) set_bases(bias, first_);
  }

 private:
  // Returns the panels of a run. A worker prefetches a run's next panel while it sweeps one.
  static int64_t panel_run(const SweepJob& job, int threads, int64_t most) {
    const int64_t panels = divide_up(job.num_candidates, kInt8Candidates);
    return std::clamp<int64_t>(panels / (8 * std::max(threads, 1)), 1, most);
  }

  // Returns the side whose rows the worker's next panel has.
  const Int8Side& next_side(BytesPause& pause) const {
    if (!first_.rows) return whole_;
    return pause.left ? (--pause.left, whole_) : first_;
  }

  void pack(const SweepJob& sweep, Int8Side& side) {
    const int64_t bytes = divide_up(sweep.num_queries, kInt8Queries) * int8_tile_bytes(features_);
    if (side.bytes < bytes) {
      side.tiles = std::make_unique<Buffer<int8_t>>(bytes);
      side.bytes = bytes;
      if (&side == &whole_) floats_ = std::make_unique<Buffer<float>>(bytes / 2);
    }
    side.queries.resize(sweep.num_queries);
    side.rows->pack_queries(sweep, side.tiles->data, floats_->data, side.queries.data());
    find_slopes(side);
    side.job.sweep = &sweep;
    side.job.tiles = side.tiles->data;
    side.job.floats = floats_->data;
    side.job.queries = side.queries.data();
    const bool rounded = sweep.rows.view.dtype == DType::f64 || sweep.query.dtype == DType::f64;
    // Each of 64 sums has at most features / 64 + 1 terms, and a tree of 6 levels adds the sums.
    // The canonical score has D + 8 roundings.
    const int64_t roundings = features_ / 64 + 8 + (rounded ? 3 : 0);
    side.job.near = round_up(static_cast<double>(roundings) * 0x1p-24 * (1.0 + 0x1p-10) +
                             static_cast<double>(features_ + 8) * 0x1p-52);
  }

  // Returns the error that comparing numbers up to `magnitude` adds to a query.
  static float base(const Int8Query& query, double magnitude) {
    const double inverse = query.inverse;
    return round_up((16.0 * 0x1p-24 * magnitude + 0x1p-120) * inverse * (1.0 + 0x1p-20) + 0x1p-120);
  }

  static void set_targets(const double* scores, double bias, Int8Side& side) {
    const SweepJob& sweep = *side.job.sweep;
    side.targets.clear();
    for (int64_t i = 0; i < sweep.num_queries; ++i)
      for (int64_t t = sweep.first_threshold[i]; t < sweep.first_threshold[i + 1]; ++t) {
        const int64_t slot = sweep.thresholds[t].slot;
        const Int8Query& query = side.queries[i];
        const double inverse = query.inverse;
        side.targets.push_back({slot, static_cast<uint32_t>(i),
                                static_cast<float>(-scores[slot] * inverse),
                                base(query, std::fabs(scores[slot]) + bias), query});
      }
    side.job.targets = side.targets.data();
  }

  static void set_bases(double bias, Int8Side& side) {
    side.bases.clear();
    for (const Int8Query& query : side.queries) side.bases.push_back(base(query, bias));
    side.job.base = side.bases.data();
  }

  // Finds the share that nine queries of ten keep within; other queries get larger slopes.
  static void find_slopes(Int8Side& side) {
    std::vector<float> shares;
    for (const Int8Query& query : side.queries)
      if (query.rounding / query.size <= 1.0f) shares.push_back(query.rounding / query.size);
    const auto place = shares.begin() + static_cast<int64_t>(shares.size()) * 9 / 10;
    if (!shares.empty()) std::nth_element(shares.begin(), place, shares.end());
    side.job.rounding_share = shares.empty() ? 1.0f : *place;
    for (Int8Query& query : side.queries) {
      const double size = query.size, rounding = query.rounding;
      const double shared = rounding / side.job.rounding_share;
      query.slope = round_up(std::max(size, shared) * (1.0 + 0x1p-20));
      query.high_slope = round_up(std::max(size + rounding, shared) * (1.0 + 0x1p-20));
    }
  }

  const Int8Tier* tier_;
  const bool is_forced_;
  const int64_t features_;
  double saving_;  // cycles that a pair saves
  const double packing_;  // cycles that packing a candidate adds
  const char* const ready_;
  const int64_t group_;
  int64_t k_ = 0;
  Int8Side whole_, first_;  // rows of two bytes a number, and rows of one byte that go first
  std::unique_ptr<Buffer<float>> floats_;  // numbers of the queries
};

}  // namespace kgfast
