"""All kinds of cases, and how often each is drawn."""

from fuzz import (
    bf16_losses,
    checkpoints,
    doors,
    evaluations,
    folders,
    gradients,
    heads,
    invalid,
    model_losses,
    partials,
    processes,
    runs,
    sums_of_paths,
    sweeps,
    tiers,
)
from fuzz.case import Kind

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("ops.rank_counts", sweeps.rank, "valid", 160),
        Kind("ops.topk", sweeps.topk, "valid", 130),
        Kind("tiers and indexes", tiers.ranks_and_best, "valid", 60),
        Kind("ops: lists", sweeps.lists, "valid", 60),
        Kind("ops.pairwise_scores", gradients.pairwise, "valid", 50),
        Kind("ops.indexed_scores", gradients.indexed, "valid", 50),
        Kind("ops losses", gradients.losses, "valid", 50),
        Kind("ops losses in bf16", bf16_losses.losses, "valid", 25, lacks=bf16_losses.lacks),
        Kind("ops.adversarial_rows", gradients.adversarial, "valid", 15),
        Kind("ops.row_adam", gradients.row_adam, "valid", 15),
        Kind("ops.adagrad", gradients.adagrad, "valid", 15),
        Kind("sums over paths", sums_of_paths.sums, "valid", 15),
        Kind("output layers", heads.head, "valid", 20),
        Kind("rank", evaluations.rank, "valid", 70),
        Kind("topk", evaluations.topk, "valid", 40),
        Kind("queries of models", evaluations.queries, "valid", 20),
        Kind("functions of blocks", doors.blocks, "valid", 20),
        Kind("ranks of relations", doors.relations, "valid", 20),
        Kind("best facts", doors.facts, "valid", 20),
        Kind("losses of samples", model_losses.sampled, "valid", 40),
        Kind("losses of all", model_losses.whole, "valid", 25),
        Kind("state: ranks", sweeps.in_state, "state", 60),
        Kind("state: scores and losses", gradients.in_state, "state", 40),
        Kind("invalid: ops", invalid.operators, "invalid", 60),
        Kind("invalid: calls", invalid.calls, "invalid", 40),
        Kind("files: data folders", folders.dataset, "files", 50),
        Kind("files: configs", folders.config, "files", 30),
        Kind("checkpoints: files", checkpoints.file, "checkpoints", 30),
        Kind("checkpoints: folders", checkpoints.folder, "checkpoints", 15),
        Kind("checkpoints: resumed", checkpoints.resume, "checkpoints", 10),
        Kind("checkpoints: partial folders", partials.folder, "checkpoints", 20),
        Kind("threads, forks, signals", processes.script, "processes", 0.6, 300.0),
        # ThreadSanitizer and AddressSanitizer need more address space than any limit leaves.
        Kind("limits of memory", processes.memory, "processes", 0.3, 300.0, sanitized=()),
        Kind("runs: kills", runs.kill, "runs", 0.3, 900.0),
        Kind("runs: full disks", runs.disk, "runs", 0.2, 900.0),
        Kind("runs: two writers", runs.two_writers, "runs", 0.15, 900.0),
        Kind("runs: other graphs", runs.graph, "runs", 0.15, 900.0),
    )
}
