// The linear tier over a pass of queries: the queries' directions, and the tiles that it serves.
#pragma once
#include <memory>
#include <vector>

#include "host/linear.h"
#include "host/passes.h"

namespace kgfast {

struct LinearMemory;  // memory of a worker

class LinearPass {
 public:
  // True if the tier serves a job: one crop of distances of plain rows, no float64.
  static bool can_serve(const Execution& execution, const SweepJob& job);
  LinearPass(const Execution& execution, const SweepJob& job, const PassPlan& plan);
  ~LinearPass();

  // Returns sum_k |q_k - mean_k|, or 0 where the sum is not finite.
  float spread(const SweepJob& job, int64_t query) const;

  // Packs the queries of a pass that are worth a try; false where none is.
  bool begin(const SweepJob& job);
  int64_t samples() const { return static_cast<int64_t>(samples_.size()); }

  // Counts the tiles that the tier could finish with one of the samples, and decides no pair.
  void try_sample(int64_t sample, int worker, Worker& wide);

  // Chooses the tiles that the tier serves; false where there are none.
  bool choose();

  // Decides pairs of a panel; returns the tiles that need no other sweep.
  const uint8_t* sweep(int64_t panel, int worker, Worker& wide);
  int64_t panels() const { return panels_; }

  LinearPairs pairs() const;

  // Writes lower bounds that the tier proves on the distances of a panel, [Q][kLinearLanes].
  void lower_bounds(int64_t panel, Worker& wide, double* out);

 private:
  bool serves_any() const;

  // Computes the mean of evenly spaced rows, without numbers that are not finite.
  void find_mean(const SweepJob& job);

  // Writes q - mean of some features, and zeros for a second plane that is not there.
  void away_from_mean(const SweepJob& job, int64_t query, int64_t feature, int64_t width,
                      float (*run)[kPackBlock]) const;
  void pack_query(const SweepJob& job, int64_t position, double reach);

  const LinearTier& tier_;
  const LinearCosts costs_;
  const bool is_forced_;
  const int planes_;
  const int64_t panels_;
  const std::vector<int64_t> samples_;
  LinearJob job_{};
  std::vector<float> mean_;  // [planes][features]
  std::vector<int8_t> queries_;
  std::vector<int32_t> offsets_;
  std::vector<float> limits_;
  std::vector<double> starts_;  // <U, q> of queries
  std::vector<uint8_t> serves_;
  std::vector<std::unique_ptr<LinearMemory>> memory_;
};

}  // namespace kgfast
