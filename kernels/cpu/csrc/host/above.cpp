#include "host/above.h"

#include <algorithm>
#include <atomic>

#include "host/topk_passes.h"

namespace kgfast {

// Open pairs of a worker, which may reach their thresholds, and results of earlier pairs.
struct AboveList {
  AboveList(const AboveRequest& request, int64_t capacity, std::atomic<int64_t>& total)
      : request(request), capacity(capacity), pairs(capacity), scores(capacity), total(total) {}

  // Moves the pairs that reach their thresholds to the results, and drops the others.
  void resolve(const TopkJob& job, double* scratch) {
    std::sort(pairs.data, pairs.data + size, [](const Pair& a, const Pair& b) {
      return a.query != b.query ? a.query < b.query : a.candidate < b.candidate;
    });
    job.isa->canonical(job, job.num_features, pairs.data, size, scratch, scores.data);
    int64_t kept = 0;
    for (int64_t i = 0; i < size; ++i)
      if (scores.data[i] >= request.lowest[pairs.data[i].query]) {  // false for a NaN
        pairs.data[kept] = pairs.data[i];
        scores.data[kept++] = scores.data[i];
      }
    size = 0;
    if (kept && total.fetch_add(kept) + kept <= request.most) add_piece(kept);
  }

  void add_piece(int64_t count) {
    const bool is_double = request.operands.query.dtype == DType::f64;
    AbovePiece piece;
    piece.ids = std::make_unique<Buffer<int64_t>>(count);
    piece.scores = std::make_unique<Buffer<char>>(count * (is_double ? 8 : 4));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t query = pairs.data[i].query;
      if (piece.runs.empty() || piece.runs.back().first != query) piece.runs.push_back({query, 0});
      ++piece.runs.back().second;
      piece.ids->data[i] = pairs.data[i].candidate;
      if (is_double)
        reinterpret_cast<double*>(piece.scores->data)[i] = scores.data[i];
      else
        reinterpret_cast<float*>(piece.scores->data)[i] = static_cast<float>(scores.data[i]);
    }
    pieces.push_back(std::move(piece));
  }

  const AboveRequest& request;
  const int64_t capacity;
  int64_t size = 0;
  Buffer<Pair> pairs;
  Buffer<double> scores;
  std::vector<AbovePiece> pieces;
  std::atomic<int64_t>& total;  // results of all workers
};

void keep_above(const TopkJob& job, int64_t position, int64_t candidate, TopkWorker& worker) {
  AboveList& list = *worker.above;
  if (list.total > list.request.most) return;
  if (list.size == list.capacity) list.resolve(job, worker.scratch);
  list.pairs.data[list.size++] = {job.query_ids[position], candidate};
}

namespace {

constexpr int64_t kPairBytes = 24 << 20;  // bytes of all workers together
constexpr int64_t kQueriesPerTask = 256;  // queries whose rows a task sorts

class Above : TopkPasses {
 public:
  Above(const Execution& execution, const AboveRequest& request)
      : TopkPasses(execution, request.operands, request.num_features, request.known, true),
        request_(request) {}

  SweepStatus run(AboveResult* result) {
    check_queries();
    if (is_ok(status_) && num_queries_ && job_.num_candidates) run_passes(0);
    for (const auto& list : lists_)
      for (AbovePiece& piece : list->pieces) result->pieces.push_back(std::move(piece));
    result->num_queries = num_queries_;
    result->count = total_;
    result->is_double = job_.query.dtype == DType::f64;
    return status_;
  }

 private:
  void begin_workers() override {
    const int64_t pair_bytes = sizeof(Pair) + sizeof(double);
    const int64_t fit = kPairBytes / pair_bytes / static_cast<int64_t>(workers_.size());
    const int64_t capacity = std::min(fit, num_queries_ * job_.num_candidates);
    for (const auto& owned : workers_) {
      lists_.push_back(std::make_unique<AboveList>(request_, capacity, total_));
      owned->worker.above = lists_.back().get();
    }
  }

  Start start(int64_t query) const override {
    const double lowest = request_.lowest[query];
    return {round_up(-lowest), std::fabs(lowest)};
  }

  bool finish_pass() override {
    parallel(static_cast<int64_t>(lists_.size()), [&](OwnedTopkWorker& owned, int64_t i) {
      lists_[i]->resolve(job_, owned.worker.scratch);
    });
    return total_ <= request_.most;
  }

  const AboveRequest& request_;
  std::atomic<int64_t> total_{0};
  std::vector<std::unique_ptr<AboveList>> lists_;
};

// Sorts a row by id.
template <class T>
void sort_row(int64_t* ids, T* scores, int64_t count) {
  if (std::is_sorted(ids, ids + count)) return;
  std::vector<std::pair<int64_t, T>> row(count);
  for (int64_t i = 0; i < count; ++i) row[i] = {ids[i], scores[i]};
  std::sort(row.begin(), row.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (int64_t i = 0; i < count; ++i) ids[i] = row[i].first, scores[i] = row[i].second;
}

template <class T>
void write_rows(AboveResult& result, int threads, int64_t* indptr, int64_t* ids, T* scores) {
  const int64_t rows = result.num_queries;
  std::fill(indptr, indptr + rows + 1, 0);
  for (const AbovePiece& piece : result.pieces)
    for (const auto& [query, count] : piece.runs) indptr[query + 1] += count;
  for (int64_t row = 0; row < rows; ++row) indptr[row + 1] += indptr[row];
  std::vector<int64_t> next(indptr, indptr + rows);
  for (AbovePiece& piece : result.pieces) {
    const auto* from = reinterpret_cast<const T*>(piece.scores->data);
    int64_t at = 0;
    for (const auto& [query, count] : piece.runs) {
      std::copy_n(piece.ids->data + at, count, ids + next[query]);
      std::copy_n(from + at, count, scores + next[query]);
      next[query] += count, at += count;
    }
    piece = {};
  }
  parallel_parts(threads, rows, kQueriesPerTask, never, [&](int, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      sort_row(ids + indptr[row], scores + indptr[row], indptr[row + 1] - indptr[row]);
  });
}

}  // namespace

void AboveResult::write(int threads, int64_t* indptr, int64_t* ids, void* scores) {
  if (is_double)
    write_rows(*this, threads, indptr, ids, static_cast<double*>(scores));
  else
    write_rows(*this, threads, indptr, ids, static_cast<float*>(scores));
}

SweepStatus above(const Execution& execution, const AboveRequest& request, AboveResult* result) {
  return Above(execution, request).run(result);
}

}  // namespace kgfast
