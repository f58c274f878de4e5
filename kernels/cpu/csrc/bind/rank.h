// Bindings of ranks and of the best k candidates.
#pragma once
#include "bind/python.h"
#include "host/above.h"
#include "host/byte_table.h"
#include "host/compose.h"
#include "host/int8.h"
#include "host/int8_table.h"
#include "host/listed.h"
#include "host/panels.h"
#include "host/rank.h"
#include "host/topk.h"

namespace kgfast {
namespace {

// `targets`: ids, scores or 0, and the candidates' sorted ids or 0. `counts`: counts of the
// targets, and of pairs.
BadRows py_rank_counts(const Machine& machine, const py::tuple& operands, const Widths& widths,
                         const std::tuple<uintptr_t, uintptr_t, uintptr_t>& targets,
                         const MaybeTuple& known, bool nan_worst,
                         const std::pair<uintptr_t, uintptr_t>& counts) {
  RankRequest request{};
  request.operands = as_operands(operands);
  request.widths = widths;
  request.targets = pointer<const int64_t>(std::get<0>(targets));
  request.target_scores = pointer<const double>(std::get<1>(targets));
  request.sorted_candidate_ids = pointer<const int64_t>(std::get<2>(targets));
  request.known = as_known(known);
  request.nan_worst = nan_worst;
  request.counts = pointer<int64_t>(counts.first);
  request.pairs = pointer<PairCounts>(counts.second);
  return bad_rows(compute(machine, [&](const Execution& execution) {
    return rank_counts(execution, request);
  }));
}

void py_sweep_errors(const Machine& machine, const py::tuple& operands, const Widths& widths,
                     uintptr_t targets, uintptr_t values, uintptr_t bounds) {
  RankRequest request{};
  request.operands = as_operands(operands);
  request.widths = widths;
  request.targets = pointer<const int64_t>(targets);
  compute(machine, [&](const Execution& execution) {
    sweep_errors(execution, request, pointer<float>(values), pointer<double>(bounds));
  });
}

// Returns the bytes of the int8 tier's panels of so many rows.
int64_t py_int8_bytes(int64_t rows, int64_t width) { return int8_table_bytes(rows, width); }

// Fills the panels of a table's rows, of so many features.
BadRows py_pack_int8(const Machine& machine, const py::tuple& operands, int64_t width,
                       uintptr_t panels) {
  const Operands given = as_operands(operands);
  return bad_rows(compute(machine, [&](const Execution& execution) {
    return pack_int8_table(execution, given, width, pointer<char>(panels));
  }));
}

// Returns the bytes of the byte panels of so many rows.
int64_t py_byte_row_bytes(int64_t rows, int64_t width, int planes) {
  return byte_table_bytes(rows, width, planes);
}

// Fills the byte panels of a table's rows, which are finite, in units of a scale.
void py_pack_bytes(const Machine& machine, const py::tuple& operands, int64_t width, float scale,
                   uintptr_t panels) {
  const Operands given = as_operands(operands);
  bad_rows(compute(machine, [&](const Execution& execution) {
    return pack_byte_table(execution, given, width, scale, pointer<char>(panels));
  }));
}

void py_byte_errors(const Machine& machine, const py::tuple& operands, uintptr_t values,
                    uintptr_t bounds) {
  const Operands given = as_operands(operands);
  compute(machine, [&](const Execution& execution) {
    byte_errors(execution, given, pointer<float>(values), pointer<float>(bounds));
  });
}

// `best`: scores and ids, [B, k] each.
BadRows py_topk(const Machine& machine, const py::tuple& operands, int64_t width, int64_t k,
                  const MaybeTuple& known, bool nan_worst,
                  const std::pair<uintptr_t, uintptr_t>& best) {
  TopkRequest request{};
  request.operands = as_operands(operands);
  request.num_features = width;
  request.k = k;
  request.known = as_known(known);
  request.nan_worst = nan_worst;
  request.scores = pointer<void>(best.first);
  request.ids = pointer<int64_t>(best.second);
  return bad_rows(
      compute(machine, [&](const Execution& execution) { return topk(execution, request); }));
}

// Reads (kind, whether the composition conjugates, interleaved, unit, anchors, relations).
Composition as_composition(const py::tuple& spec) {
  Composition how{};
  how.kind = static_cast<Compose>(spec[0].cast<int>());
  how.conjugates = spec[1].cast<bool>();
  how.interleaved = spec[2].cast<bool>();
  how.unit = spec[3].cast<double>();
  how.anchors = as_view(spec[4].cast<py::tuple>());
  how.relations = as_view(spec[5].cast<py::tuple>());
  return how;
}

// Composes queries as float32 rows, as long as rows of anchors; the operands give the columns of
// such a row. `ids` names anchors and relations.
BadRows py_topk_of_ids(const Machine& machine, const py::tuple& operands, int64_t width,
                         int64_t k, const py::tuple& composition,
                         const std::pair<std::vector<int64_t>, std::vector<int64_t>>& ids,
                         const std::pair<uintptr_t, uintptr_t>& best) {
  Composition how = as_composition(composition);
  how.anchor_ids = ids.first.data();
  how.relation_ids = ids.second.data();
  TopkRequest request{};
  request.operands = as_operands(operands);
  request.num_features = width;
  request.k = k;
  request.scores = pointer<void>(best.first);
  request.ids = pointer<int64_t>(best.second);
  View& query = request.operands.query;
  query.count = static_cast<int64_t>(ids.first.size());
  Buffer<float> queries(query.count * query.row_stride);
  query.data = reinterpret_cast<const char*>(queries.data);
  return bad_rows(compute(machine, [&](const Execution& execution) {
    compose(how, query.count, query.row_stride, queries.data);
    return topk(execution, request);
  }));
}

constexpr const char* kAboveResult = "kgfast.AboveResult";

// Returns the bad rows, the number of results, and the results.
std::tuple<BadRows, int64_t, py::object> py_above(
    const Machine& machine, const py::tuple& operands, int64_t width, uintptr_t lowest,
    const MaybeTuple& known, int64_t most) {
  const AboveRequest request = {as_operands(operands), width, pointer<const double>(lowest),
                                as_known(known), most};
  auto result = std::make_unique<AboveResult>();
  const SweepStatus status = compute(machine, [&](const Execution& execution) {
    return above(execution, request, result.get());
  });
  const int64_t count = result->count;
  return {bad_rows(status), count, py::held(std::move(result), kAboveResult)};
}

// `out`: indptr [B + 1], ids and scores [count].
void py_write_above(const Machine& machine, py::handle results,
                    const std::tuple<uintptr_t, uintptr_t, uintptr_t>& out) {
  auto& result = py::held_in<AboveResult>(results, kAboveResult);
  const auto [indptr, ids, scores] = out;
  compute(machine, [&, indptr = indptr, ids = ids, scores = scores](const Execution& execution) {
    result.write(execution.threads, pointer<int64_t>(indptr), pointer<int64_t>(ids),
                 pointer<void>(scores));
  });
}

// Returns the lanes and planes of a panel of a score.
std::tuple<int64_t, int64_t> py_panel_shape(const std::string& isa, int score) {
  const ScoreFacts facts = isa_named(isa).facts(static_cast<ScoreId>(score));
  return {facts.lanes, facts.planes};
}

BadRows py_pack_panels(const Machine& machine, const py::tuple& operands, int64_t width,
                         uintptr_t panels, uintptr_t norms) {
  const Operands given = as_operands(operands);
  return bad_rows(compute(machine, [&](const Execution& execution) {
    return pack_panels(execution, given, width, pointer<float>(panels), pointer<float>(norms));
  }));
}

// `lists`, `known`: (indptr, indices).
ListRequest list_request(const py::tuple& operands, int64_t width, const py::tuple& lists,
                         const MaybeTuple& known, bool nan_worst) {
  return {as_operands(operands), width, as_known(lists), as_known(known), nan_worst};
}

BadRows py_list_counts(const Machine& machine, const py::tuple& operands, int64_t width,
                         const py::tuple& lists, const MaybeTuple& known, bool nan_worst,
                         const std::pair<uintptr_t, uintptr_t>& targets_and_counts) {
  const ListRequest request = list_request(operands, width, lists, known, nan_worst);
  const auto [targets, counts] = targets_and_counts;
  const auto* ids = pointer<const int64_t>(targets);
  auto* out = pointer<int64_t>(counts);
  return bad_rows(compute(machine, [&](const Execution& execution) {
    return list_counts(execution, request, ids, out);
  }));
}

// `best`: k, and scores and ids, [B, k] each.
BadRows py_list_topk(const Machine& machine, const py::tuple& operands, int64_t width,
                       const py::tuple& lists, const MaybeTuple& known, bool nan_worst,
                       const std::tuple<int64_t, uintptr_t, uintptr_t>& best) {
  const ListRequest request = list_request(operands, width, lists, known, nan_worst);
  const int64_t k = std::get<0>(best);
  auto* scores = pointer<void>(std::get<1>(best));
  auto* ids = pointer<int64_t>(std::get<2>(best));
  return bad_rows(compute(machine, [&](const Execution& execution) {
    return list_topk(execution, request, k, scores, ids);
  }));
}

void bind_rank(py::Methods& methods) {
  methods.def<&py_rank_counts>("rank_counts");
  methods.def<&py_sweep_errors>("sweep_errors");
  methods.def<&py_int8_bytes>("int8_bytes");
  methods.def<&py_pack_int8>("pack_int8");
  methods.def<&py_byte_row_bytes>("byte_row_bytes");
  methods.def<&py_pack_bytes>("pack_bytes");
  methods.def<&py_byte_errors>("byte_errors");
  methods.def<&py_topk>("topk");
  methods.def<&py_topk_of_ids>("topk_of_ids");
  methods.def<&py_above>("above");
  methods.def<&py_write_above>("write_above");
  methods.def<&py_panel_shape>("panel_shape");
  methods.def<&py_pack_panels>("pack_panels");
  methods.def<&py_list_counts>("list_counts");
  methods.def<&py_list_topk>("list_topk");
}

}  // namespace
}  // namespace kgfast
