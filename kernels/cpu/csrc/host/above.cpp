#include "host/above.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "host/fpmode.h"
#include "host/topk_passes.h"

namespace kgfast {

namespace {

constexpr int64_t kQueriesPerTask = 256;  // queries whose rows a task sorts

class Above : TopkPasses {
 public:
  Above(const Execution& execution, const AboveRequest& request)
      : TopkPasses(execution, request.operands, request.num_features, {}, request.known, true),
        request_(request) {
    job_.question = Question::append;
    job_.resolve = [](const SweepJob& job, Worker& worker) {
      static_cast<Above*>(job.owner)->resolve(worker);
    };
    job_.owner = this;
  }

  SweepStatus run(AboveResult* result) {
    const int64_t pairs = num_queries_ * job_.num_candidates;
    if (is_ok(status_) && pairs)
      run_passes(0, sizeof(Pair) + sizeof(double), std::max<int64_t>(pairs, 64));
    result->pieces = std::move(pieces_);
    result->num_queries = num_queries_;
    result->count = count_;
    result->is_double = job_.query.dtype == DType::f64;
    return status_;
  }

 private:
  float limit(int64_t query) const override { return round_up(-request_.lowest[query]); }

  bool finish_pass() override {
    parallel(plan_.threads, [&](OwnedWorker&, int64_t i) { resolve(workers_[i]->worker); });
    return count_ <= request_.most;
  }

  // Moves the pairs of the band that reach their thresholds to the results, and drops the others.
  void resolve(Worker& worker) {
    const FloatMode mode(FloatMode::kIeee);  // a sweep calls this in its own mode
    const auto is_known = [&](const Pair& pair) {
      const int64_t* const first = job_.first_known + (pair.query - job_.query_ids[0]);
      return std::binary_search(job_.known + first[0], job_.known + first[1], pair.candidate);
    };
    Pair* const begin = worker.band;
    Pair* end = std::remove_if(begin, begin + worker.band_size, is_known);
    worker.band_size = 0;
    if (count_ > request_.most) return;
    std::sort(begin, end, [](const Pair& a, const Pair& b) {
      return a.query != b.query ? a.query < b.query : a.candidate < b.candidate;
    });
    Buffer<double> scores(end - begin);
    isa_.canonical(job_, job_.num_features, begin, end - begin, worker.scratch, scores.data);
    int64_t kept = 0;
    for (int64_t i = 0; i < end - begin; ++i)
      if (scores.data[i] >= request_.lowest[begin[i].query]) {  // false for a NaN
        begin[kept] = begin[i];
        scores.data[kept++] = scores.data[i];
      }
    if (kept && count_.fetch_add(kept) + kept <= request_.most) add_piece(begin, scores.data, kept);
  }

  void add_piece(const Pair* pairs, const double* scores, int64_t count) {
    const bool is_double = request_.operands.query.dtype == DType::f64;
    AbovePiece piece;
    piece.ids = std::make_unique<Buffer<int64_t>>(count);
    piece.scores = std::make_unique<Buffer<char>>(count * (is_double ? 8 : 4));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t query = pairs[i].query;
      if (piece.runs.empty() || piece.runs.back().first != query) piece.runs.push_back({query, 0});
      ++piece.runs.back().second;
      piece.ids->data[i] = pairs[i].candidate;
      if (is_double)
        reinterpret_cast<double*>(piece.scores->data)[i] = scores[i];
      else
        reinterpret_cast<float*>(piece.scores->data)[i] = static_cast<float>(scores[i]);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    pieces_.push_back(std::move(piece));
  }

  const AboveRequest& request_;
  std::atomic<int64_t> count_{0};  // results of all workers
  std::mutex mutex_;               // guards pieces_
  std::vector<AbovePiece> pieces_;
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
  parallel_ranges(threads, rows, kQueriesPerTask, never, [&](int, int64_t first, int64_t last) {
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
