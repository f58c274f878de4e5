// Decides whether bytes of rows serve a search, and packs the queries of a pass.
#pragma once
#include <vector>

#include "host/byte_rows.h"
#include "host/passes.h"

namespace kgfast {

// Rows of a table for each requested answer, at least. With fewer rows, canonical scores of open
// pairs take as long as float32 distances.
constexpr int64_t kRowsOfAnswer = 200;

class BytePass {
 public:
  BytePass(const Execution& execution, const SweepJob& job, int64_t k)
      : tier_(execution.may_use(Tier::bytes) ? execution.isa.bytes : nullptr),
        most_(job.num_candidates / (kRowsOfAnswer * std::max<int64_t>(k, 1))) {
    const bool is_whole = job.packed.bytes && job.num_features == job.packed.features;
    if (!is_whole || kByteCandidates % job.facts.lanes) tier_ = nullptr;
    if (execution.may_use(Tier::forced)) most_ = kByteQueries;
    // With more queries, sums of squares or moduli take about as long in bytes as in float32.
    most_ = std::min(most_, job.facts.terms == Terms::magnitudes ? kByteQueries : kByteQueries / 4);
  }

  // True if bytes serve a pass of `queries` queries. Many queries share float32 panels, and are
  // faster by these.
  bool serves(int64_t queries) const { return tier_ && queries <= most_; }
  void sweep_panel(int64_t panel, Worker& worker) const { tier_->sweep_panel(job_, panel, worker); }

  // Packs the queries of a pass.
  void pack(const SweepJob& sweep) {
    const int64_t features = sweep.num_features, padded = byte_padded(features);
    const int planes = sweep.facts.planes;
    bytes_.assign(sweep.num_queries * planes * padded, 128);
    moved_.clear();
    for (int64_t i = 0; i < sweep.num_queries; ++i)
      moved_.push_back(pack_query(sweep, sweep.query_ids[i], &bytes_[i * planes * padded]));
    job_ = {&sweep, bytes_.data(), moved_.data()};
  }

 private:
  // Writes the bytes of a query; returns an upper bound of |r| (byte_rows.h).
  static float pack_query(const SweepJob& job, int64_t query, uint8_t* out) {
    const int64_t features = job.num_features, padded = byte_padded(features);
    const double scale = job.packed.scale;
    std::vector<double> squares(features, 0.0);
    read_query(job, features, query, [&](int plane, int64_t k, int64_t width, const double* run) {
      for (int64_t i = 0; i < width; ++i) {
        const double most = kByteMost, t = run[i] / scale;
        const double whole = std::isfinite(t) ? std::clamp(std::nearbyint(t), -most, most) : 0.0;
        const double rest = run[i] - scale * whole;  // not finite: all pairs stay open
        out[plane * padded + k + i] = static_cast<uint8_t>(static_cast<int>(whole) + 128);
        squares[k + i] += rest * rest;
      }
    });
    double sum = 0.0;
    for (const double square : squares)
      sum += job.facts.terms == Terms::squares ? square : std::sqrt(square);
    const double length = job.facts.terms == Terms::squares ? std::sqrt(sum) : sum;
    return round_up(length * (1.0 + 1e-6) + 0x1p-120);
  }

  const ByteTier* tier_;
  int64_t most_;
  std::vector<uint8_t> bytes_;
  std::vector<float> moved_;
  ByteJob job_{};
};

}  // namespace kgfast
