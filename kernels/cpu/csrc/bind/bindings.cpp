// kgfast.kernels._cpu: takes pointers, sizes and strides, and writes to memory that Python made.
#include <array>

#include "bind/casts.h"
#include "bind/unlocked.h"
#include "host/above.h"
#include "host/byte_rows.h"
#include "host/int8.h"
#include "host/panels.h"
#include "host/rank.h"
#include "host/scores.h"
#include "host/topk.h"
#include "host/training.h"
#include "scores/trig.h"

namespace kgfast {
namespace {

using py::literals::operator""_a;
using Ids = Memory<const int64_t>;
using Floats = Memory<float>;
using Widths = std::vector<int64_t>;
using BadRows = std::tuple<int64_t, int64_t, int64_t>;

const Isa& isa_named(const std::string& name) {
  const Isa* isa = find_isa(name.c_str());
  if (!isa) throw std::invalid_argument("no such instruction set here: " + name);
  return *isa;
}

// Runs body(execution) without Python's lock.
template <class Body>
auto compute(const Machine& machine, Body body) {
  const Isa& isa = isa_named(machine.isa);
  Unlocked unlocked;
  const unsigned served = machine.tiers & (find_tiers(isa) | static_cast<unsigned>(Tier::forced));
  return body(Execution{isa, machine.threads, served, unlocked.interrupted()});
}

void stop_if(bool was_interrupted) {
  if (was_interrupted) throw py::error_already_set();
}

// Returns the first bad rows of queries, candidates and factor, -1 where there is none.
BadRows bad_rows(const SweepStatus& status) {
  stop_if(status.interrupted);
  const auto row = [](int64_t bad) { return bad == INT64_MAX ? int64_t{-1} : bad; };
  return {row(status.bad_query), row(status.bad_candidate), row(status.bad_factor)};
}

void bind_machine(py::module_& module) {
  module.def("find_isa", [](const std::string& name) {
    const Isa* isa = find_isa(name.c_str());
    return std::string(isa ? isa->name : "");
  });
  module.def("find_tiers", [](const std::string& isa) { return find_tiers(isa_named(isa)); });
}

void bind_ranks(py::module_& module) {
  module.def(
      "rank_counts",
      [](const Machine& machine, const Operands& operands, const Widths& widths, Ids targets,
         Memory<const double> target_scores, Ids sorted_ids, const Known& lists,
         const Known& known, bool nan_worst, Memory<int64_t> counts, Memory<PairCounts> pairs,
         Floats recorded) {
        const RankRequest request{operands, widths,    targets, target_scores, sorted_ids, lists,
                                  known,    nan_worst, counts,  pairs,         recorded};
        return bad_rows(compute(machine, [&](const Execution& execution) {
          return rank_counts(execution, request);
        }));
      },
      "machine"_a, "operands"_a, "widths"_a, "targets"_a, "target_scores"_a, "sorted_ids"_a,
      "lists"_a, "known"_a, "nan_worst"_a, "counts"_a, "pairs"_a, "recorded"_a = py::none());
}

void bind_best(py::module_& module) {
  module.def(
      "topk",
      [](const Machine& machine, const Operands& operands, int64_t width, int64_t k,
         const Known& lists, const Known& known, bool nan_worst, Memory<void> scores,
         Memory<int64_t> ids) {
        const TopkRequest request{operands, width, k, lists, known, nan_worst, scores, ids};
        return bad_rows(
            compute(machine, [&](const Execution& execution) { return topk(execution, request); }));
      },
      "machine"_a, "operands"_a, "width"_a, "k"_a, "lists"_a, "known"_a, "nan_worst"_a,
      "scores"_a, "ids"_a);
  // Returns the bad rows, and results whose `write` fills indptr [B + 1], ids and scores [count].
  module.def(
      "above",
      [](const Machine& machine, const Operands& operands, int64_t width,
         Memory<const double> lowest, const Known& known, int64_t most) {
        const AboveRequest request{operands, width, lowest, known, most};
        auto result = std::make_unique<AboveResult>();
        const SweepStatus status = compute(machine, [&](const Execution& execution) {
          return above(execution, request, result.get());
        });
        return std::make_pair(bad_rows(status), std::move(result));
      },
      "machine"_a, "operands"_a, "width"_a, "lowest"_a, "known"_a, "most"_a);
  py::class_<AboveResult>(module, "AboveResult")
      .def_readonly("count", &AboveResult::count)
      .def(
          "write",
          [](AboveResult& result, const Machine& machine, Memory<int64_t> indptr,
             Memory<int64_t> ids, Memory<void> scores) {
            compute(machine, [&](const Execution& execution) {
              result.write(execution.threads, indptr, ids, scores);
            });
          },
          "machine"_a, "indptr"_a, "ids"_a, "scores"_a);
}

void bind_panels(py::module_& module) {
  // Returns the lanes and planes of a panel of a score.
  module.def("panel_shape", [](const std::string& isa, int score) {
    const ScoreFacts facts = isa_named(isa).facts(static_cast<ScoreId>(score));
    return std::make_pair(facts.lanes, facts.planes);
  });
  // Return the bytes of a panel.
  module.def("int8_bytes", &int8_panel_bytes, "features"_a);
  module.def("byte_row_bytes", &byte_panel_bytes, "features"_a, "planes"_a);
  module.def(
      "pack",
      [](const Machine& machine, const Operands& operands, const Packed& panels) {
        return bad_rows(compute(machine, [&](const Execution& execution) {
          return pack_table(execution, operands, panels);
        }));
      },
      "machine"_a, "operands"_a, "panels"_a);
}

void bind_scores(py::module_& module) {
  // `index`: [B, per_query] rows, or None.
  module.def(
      "scores",
      [](const Machine& machine, const Operands& operands, const Widths& widths,
         Ids index, int64_t per_query, Floats out) {
        ScoresJob job{};
        static_cast<Operands&>(job) = operands;
        job.crops = {widths.data(), static_cast<int64_t>(widths.size())};
        job.num_features = widths.back();
        job.index = index;
        job.per_query = per_query;
        job.bias = reinterpret_cast<const float*>(operands.bias_view.data);
        job.out = out;
        stop_if(compute(machine, [&](const auto& execution) { return scores(execution, job); }));
      },
      "machine"_a, "operands"_a, "widths"_a, "index"_a, "per_query"_a, "out"_a);
  // `grad`: [C, B, *] with these strides. Gradients that are None are not computed.
  module.def(
      "backward",
      [](const Machine& machine, const Operands& operands, const Widths& widths,
         Memory<const float> grad, const std::array<int64_t, 3>& strides, const View& of_query,
         const View& of_table, const View& of_factor, Ids index, int64_t per_query,
         const RowGroups& groups, bool adds_to_rows) {
        const auto [crop_stride, row_stride, column_stride] = strides;
        const int64_t crops = static_cast<int64_t>(widths.size());
        const BackwardJob job{operands,
                              {grad, crop_stride, row_stride, column_stride, widths.data(), crops},
                              of_query,
                              {of_table, of_factor, operands.rows.planes},
                              widths.back(),
                              adds_to_rows,
                              index,
                              per_query,
                              groups};
        stop_if(compute(machine, [&](const auto& execution) { return backward(execution, job); }));
      },
      "machine"_a, "operands"_a, "widths"_a, "grad"_a, "strides"_a, "of_query"_a, "of_table"_a,
      "of_factor"_a, "index"_a = py::none(), "per_query"_a = -1, "groups"_a = py::none(),
      "adds_to_rows"_a = false);
  // Computes cosine and sine of float64 radians.
  module.def("cos_sin", [](const Machine& machine, Memory<const double> phases, int64_t count,
                           Memory<double> cosine, Memory<double> sine) {
    compute(machine, [&](const Execution&) {
      for (int64_t i = 0; i < count; ++i) {
        const CosSin turn = cos_sin(phases.data[i] + 0.0);  // + 0.0 makes 0 of -0
        cosine.data[i] = turn.cosine;
        sine.data[i] = turn.sine;
      }
    });
  });
}

void bind_training(py::module_& module) {
  // a, b and c are float64 sums, the others float32 numbers of each row, or None.
  module.def(
      "loss_pass",
      [](const Machine& machine, int walk, Floats scores, int64_t rows, int64_t columns,
         Memory<double> a, Memory<double> b, Memory<double> c, Memory<const float> shift,
         Memory<const float> scale, Memory<const float> share, float constant) {
        const LossTile tile{scores, rows, columns, a, b, c, shift, scale, constant, share};
        compute(machine, [&](const Execution& execution) {
          loss_pass(execution, static_cast<LossPass>(walk), tile);
        });
      },
      "machine"_a, "walk"_a, "scores"_a, "rows"_a, "columns"_a, "a"_a, "b"_a, "c"_a, "shift"_a,
      "scale"_a, "share"_a, "constant"_a);
  module.def(
      "row_adam",
      [](int threads, Floats table, Floats first_moment, Floats second_moment, Ids ids,
         Memory<const float> gradients, int64_t count, int64_t width, float first_share,
         float second_share, float step_size, float root_scale, float eps, float weight_decay) {
        const RowAdamJob job{table,       first_moment, second_moment, ids,
                             gradients,   count,        width,         first_share,
                             second_share, step_size,   root_scale,    eps,
                             weight_decay};
        const Unlocked unlocked;
        row_adam(job, threads);
      },
      "threads"_a, "table"_a, "first_moment"_a, "second_moment"_a, "ids"_a, "gradients"_a,
      "count"_a, "width"_a, "first_share"_a, "second_share"_a, "step_size"_a, "root_scale"_a,
      "eps"_a, "weight_decay"_a);
  module.def(
      "adagrad",
      [](const Machine& machine, Floats table, Floats sum, Ids ids, Memory<const float> gradient,
         int64_t count, int64_t width, float rate, float eps, float weight_decay) {
        const AdagradJob job{table, sum, ids, gradient, count, width, rate, eps, weight_decay};
        compute(machine, [&](const Execution& execution) { adagrad(execution, job); });
      },
      "machine"_a, "table"_a, "sum"_a, "ids"_a, "gradient"_a, "count"_a, "width"_a, "rate"_a,
      "eps"_a, "weight_decay"_a);
}

}  // namespace
}  // namespace kgfast

PYBIND11_MODULE(_cpu, module, pybind11::mod_gil_not_used()) {
  using namespace kgfast;
  module.doc() = "SIMD kernels of kgfast for the CPU";
  const auto threading = py::module_::import("threading");
  main_thread = threading.attr("main_thread")().attr("ident").cast<unsigned long>();
  bind_machine(module);
  bind_ranks(module);
  bind_best(module);
  bind_panels(module);
  bind_scores(module);
  bind_training(module);
}
