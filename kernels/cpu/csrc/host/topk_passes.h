// Passes of queries whose limits on costs decide which candidates of a sweep survive. A limit of
// the best k falls as the sweep goes; the limit of a threshold stands still.
#pragma once
#include <memory>
#include <numeric>
#include <vector>

#include "host/byte_rows.h"
#include "host/sweeps.h"
#include "host/topk.h"

namespace kgfast {

// Rows of a table for each requested answer, at least. With fewer rows, canonical scores of open
// pairs take as long as float32 distances.
constexpr int64_t kRowsOfAnswer = 200;

// Decides whether bytes of rows serve a pass of queries for the best k, and packs the queries.
class BytePass {
 public:
  BytePass(const Execution& execution, const SweepJob& job, int64_t k)
      : tier_(execution.may_use(Tier::bytes) ? execution.isa.bytes : nullptr),
        most_(job.num_candidates / (kRowsOfAnswer * k)) {
    const bool is_whole = job.packed.bytes && job.num_features == job.packed.features;
    if (!is_whole || kByteCandidates % job.facts.lanes) tier_ = nullptr;
    if (execution.may_use(Tier::forced)) most_ = kByteQueries;
    // With more queries, sums of squares or moduli take about as long in bytes as in float32.
    most_ = std::min(most_, job.facts.terms == Terms::magnitudes ? kByteQueries : kByteQueries / 4);
  }

  // True if bytes serve a pass of so many queries. More queries share float32 panels, which is
  // faster.
  bool serves(int64_t queries) const { return tier_ && queries <= most_; }
  const ByteTier& tier() const { return *tier_; }
  const ByteJob& job() const { return job_; }

  // Packs the queries of a pass; `base`: the error that comparing adds, of each query.
  void pack(const SweepJob& sweep, const float* base) {
    const int64_t features = sweep.num_features, padded = byte_padded(features);
    const int planes = sweep.facts.planes;
    bytes_.assign(sweep.num_queries * planes * padded, 128);
    moved_.clear();
    for (int64_t i = 0; i < sweep.num_queries; ++i)
      moved_.push_back(pack_query(sweep, sweep.query_ids[i], &bytes_[i * planes * padded]));
    job_ = {&sweep, bytes_.data(), moved_.data(), base};
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

// A worker of a pass: survivors of the best k for each of so many queries, or one list of all pairs
// that may be above their threshold.
struct OwnedTopkWorker : WorkerMemory {
  OwnedTopkWorker(const PassPlan& plan, const SweepJob& job, int64_t queries, int64_t capacity)
      : WorkerMemory(plan, job), survivors(queries * capacity), counts(queries) {
    lend(worker);
    worker.survivors = survivors.data;
    worker.counts = counts.data();
  }
  Buffer<Survivor> survivors;
  std::vector<int64_t> counts;
  TopkWorker worker{};
};

constexpr int64_t kSurvivorBytes = 24 << 20;  // for all workers together, where k allows it
constexpr int64_t kMostOpen = 4096;  // extra survivors of a query, as bytes leave more open

class TopkPasses : protected Sweeps<OwnedTopkWorker, TopkJob> {
 protected:
  // A first limit on costs, and the largest number that costs are compared with, beside a bias.
  struct Start {
    float limit;
    double magnitude;
  };

  TopkPasses(const Execution& execution, const Operands& operands, int64_t features,
             const Known& known, bool checks_finite)
      : Sweeps(execution, operands, {features}, checks_finite), of_known_(known) {
    job_.isa = &isa_;
  }
  virtual ~TopkPasses() = default;

  virtual Start start(int64_t query) const = 0;

  // Turns the survivors of a pass into results; false: no later pass is needed.
  virtual bool finish_pass() = 0;

  void check_queries() {
    for (int64_t query = 0; query < num_queries_; ++query)
      check_query(job_, query, &status_.bad_query);
  }

  // `answers`: how many each query may have; 0: unknown.
  void run_passes(int64_t answers) {
    const int64_t bytes_of_query =
        std::max<int64_t>(job_.capacity * static_cast<int64_t>(sizeof(Survivor)), 1);
    plan(kSurvivorBytes / std::max(execution_.threads, 1) / bytes_of_query, answers);
    const int64_t queries = std::min(plan_.queries, num_queries_);
    plan_.threads = static_cast<int>(
        std::clamp<int64_t>(kSurvivorBytes / (queries * bytes_of_query), 1, plan_.threads));
    BytePass bytes(execution_, job_, std::max<int64_t>(answers, 1));
    // Bytes tell less of a candidate: more stay open until canonical scores of a few decide.
    if (bytes.serves(queries)) job_.capacity += std::min(7 * job_.capacity, kMostOpen);
    for (int i = 0; i < plan_.threads; ++i)
      workers_.push_back(std::make_unique<OwnedTopkWorker>(plan_, job_, queries, job_.capacity));
    begin_workers();
    const auto sweep_wide = [&](OwnedTopkWorker& owned, int64_t panel) {
      isa_.topk->sweep_panel(job_, panel, owned.worker);
    };
    for (int64_t first = 0; is_ok(status_) && first < num_queries_; first += plan_.queries) {
      prepare_pass(first, std::min(plan_.queries, num_queries_ - first));
      packed_.pack(execution_, job_);
      if (int8_->serves(job_.num_queries)) {
        int8_->pack(job_);
        int8_->set_bases(bias_.magnitude());
        const auto keep_panel = [&](OwnedTopkWorker& owned, const Int8Panel& panel) {
          int8_->tier().keep_panel(int8_->job(), job_, panel, owned.worker);
        };
        sweep_int8(keep_panel, sweep_wide);
      } else if (bytes.serves(job_.num_queries)) {
        sweep_bytes(bytes);
      } else {
        parallel(plan_.panels, sweep_wide);
      }
      if (is_ok(status_) && !finish_pass()) return;
    }
  }

  // Prepares the workers of a derived class.
  virtual void begin_workers() {}

 private:
  // Sweeps runs of panels: a worker prefetches the next panel of a run while it sweeps one.
  void sweep_bytes(BytePass& bytes) {
    constexpr int64_t most = 16;
    const int64_t panels = divide_up(job_.num_candidates, kByteCandidates);
    const int64_t run = std::clamp<int64_t>(panels / (8 * plan_.threads), 1, most);
    bytes.pack(job_, base_.data());
    parallel(divide_up(panels, run), [&](OwnedTopkWorker& owned, int64_t task) {
      for (int64_t panel = task * run; panel < std::min((task + 1) * run, panels); ++panel)
        bytes.tier().keep_panel(bytes.job(), job_, panel, owned.worker);
    });
    for (const auto& owned : workers_)
      for (int64_t i = 0; i < job_.num_queries; ++i) settle(job_, i, owned->worker);
  }

  void prepare_pass(int64_t first, int64_t count) {
    rows_.resize(count);
    std::iota(rows_.begin(), rows_.end(), first);
    base_.resize(count);
    slope_.resize(count);
    limits_.resize(count);
    known_.clear();
    first_known_.assign(1, 0);
    for (int64_t i = 0; i < count; ++i) {
      const Start begin = start(first + i);
      const AbsoluteError error = absolute_error(job_, job_.num_features, bounds_[0], first + i,
                                                 begin.magnitude + bias_.magnitude());
      limits_[i] = begin.limit;
      base_[i] = error.base;
      slope_[i] = error.slope;
      const std::vector<int64_t> ids = sorted_known(of_known_, first + i);
      known_.insert(known_.end(), ids.begin(), ids.end());
      first_known_.push_back(static_cast<int64_t>(known_.size()));
    }
    for (const auto& owned : workers_) std::fill(owned->counts.begin(), owned->counts.end(), 0);
    job_.query_ids = rows_.data();
    job_.num_queries = count;
    job_.base = base_.data();
    job_.slope = slope_.data();
    job_.limits = limits_.data();
    job_.known = known_.data();
    job_.first_known = first_known_.data();
  }

 protected:
  const Known of_known_;
  std::vector<int64_t> rows_;

 private:
  std::vector<int64_t> known_, first_known_;
  std::vector<float> base_, slope_, limits_;
};

}  // namespace kgfast
