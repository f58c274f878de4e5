// The half-precision sweep over a pass of queries: whether it serves, its scale, its bound, and
// which tiles of queries it takes over from the float32 sweep.
#pragma once
#include <memory>
#include <vector>

#include "host/bounds.h"
#include "host/half.h"
#include "host/passes.h"

namespace kgfast {

struct HalfMemory;  // memory of a worker

class HalfPasses {
 public:
  // True if the sweep serves a job: one crop, panels up to a MiB, no float64.
  static bool can_serve(const Execution& execution, const SweepJob& job);
  HalfPasses(const Execution& execution, const SweepJob& job, const PassPlan& plan);
  ~HalfPasses();

  // Packs the queries of a pass; false where they are too few.
  bool begin(const SweepJob& job);
  const std::vector<int64_t>& samples() const { return samples_; }
  bool is_sample(int64_t panel) const;
  int64_t panels() const { return panels_; }

  // Sweeps all tiles with one of the samples. Here and in sweep(), tiles that are `done` need no
  // work; nullptr: no tile is done.
  void sweep_sample(int64_t sample, int worker, const uint8_t* done, Worker& wide);

  // Sweeps each tile with a panel, by the sweep that choose() gave the tile.
  void sweep(int64_t panel, int worker, const uint8_t* done, Worker& wide);

  // Chooses the tiles of this sweep. To pack panels for both sweeps may cost more than it saves.
  void choose(const SweepJob& job);
  TierPairs pairs() const;

  // Writes the sweep's distances of a panel, and the absolute part of each distance's bound.
  void values(int64_t panel, Worker& wide, float* out, double* errors);
  float rel() const { return job_.rel; }
  double term() const { return facts_.costs.term; }  // cost of one term

 private:
  void sweep_halves(int64_t panel, HalfMemory& memory, const uint8_t* done, Worker& wide);
  void find_panel(int64_t panel, HalfWorker& half, Worker& wide);

  // Finds the queries' reaches; the sweep adds the part of each candidate.
  void find_reaches(const SweepJob& job);

  const Isa& isa_;
  const HalfTier& tier_;
  const HalfFacts facts_;
  const bool is_forced_;
  const int64_t panels_;
  const std::vector<int64_t> samples_;
  const HalfBound bound_;
  HalfJob job_{};
  bool any_half_ = true, any_float_ = false;
  std::unique_ptr<Buffer<uint32_t>> packed_;
  int64_t packed_size_ = 0;
  std::vector<float> query_errors_, reaches_;
  std::vector<uint8_t> serves_;
  std::vector<std::unique_ptr<HalfMemory>> memory_;
};

}  // namespace kgfast
