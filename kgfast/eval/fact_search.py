"""top_facts(): the best new facts among all triples, or a slice of them."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.asked import checked_ids_of
from kgfast.eval.batches import (
    check_known,
    check_names,
    check_rankable,
    checked_batch_size,
    evaluating,
)
from kgfast.eval.best_facts import FactSearch, Grid, cut_of, fingerprint
from kgfast.eval.counting import source_in_memory
from kgfast.eval.facts import Facts
from kgfast.eval.host import host_model
from kgfast.eval.one_pass import Cut, keeping
from kgfast.eval.rows import check_limits, entity_table
from kgfast.eval.sources import InRows
from kgfast.graph import KnownTriples, names_of
from kgfast.graph.memory import memory_limit
from kgfast.models import BlockScorer, RankableModel
from kgfast.ops.checks import check_unique
from kgfast.ops.topk import check_k
from kgfast.progress import progress_bar, sweep_bar
from kgfast.tables import Rows


def top_facts(
    model: RankableModel | BlockScorer,
    *,
    k: int = 100,
    known: KnownTriples | None = None,
    relations: Any = None,
    heads: Any = None,
    tails: Any = None,
    vocabulary: Any = None,
    batch_size: int | None = None,
    max_memory: int | str | None = None,
    partial: Any = None,
    progress: bool = False,
) -> Facts:
    """Find the ``k`` best new facts among all triples (h, r, t), exactly.

    The score of a triple is that of its tail for (h, r). Triples are streamed: memory stays below
    64 MiB beyond the model's tables and the result. Equal scores are ordered by the lowest
    (h, r, t), on every backend and device.

    Parameters
    ----------
    model : Model
        As :func:`kgfast.topk` takes it, a :class:`kgfast.BlockScorer` too: of it, what scores NaN
        with ``nan="worst"`` is no fact.
    k : int
        How many; there are fewer in the result if fewer are left.
    known : KnownTriples, optional
        Triples that are left out, so that what is found is new.
    relations, heads, tails : int, sequence of int or Tensor, or names, optional
        Unique ids: only triples of these.
    vocabulary : pair of Vocabulary or lists of names, Dataset or Triples, optional
        The names of the model's rows: for slices by name, and for facts that show them.
    batch_size : int, optional
        Queries (h, r) a batch. The default keeps a batch within 8 MiB; results do not depend on it.
    max_memory : int or str, optional
        Of models whose entities are a :class:`kgfast.tables.Table`, as :func:`kgfast.rank` takes
        it: the file is read once for as many queries (h, r) as find room, so ask for a slice.
    partial : path, optional
        A folder that keeps what was found after each range of such a table, as :func:`kgfast.rank`
        takes it.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Facts
        On the CPU.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the model; the message names the argument and the first row.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))
    >>> top_facts(model, k=2, known=KnownTriples([(0, 0, 1)]))
    2 facts
    (0, 0, 0)  -1
    (1, 0, 1)  -1
    """
    check_rankable(model)
    model = host_model(model)
    check_known(known)
    check_k(k, None)
    names = names_of(vocabulary)
    check_names(names, model)
    entities, own = (int(model.num_entities), names[0]), (int(model.num_relations), names[1])
    axes = _axis("heads", heads, *entities), _axis("relations", relations, *own)
    ids = None if tails is None else _axis("tails", tails, *entities)
    grid, table = Grid(*axes, checked_batch_size(batch_size, model)), entity_table(model)
    check_limits(table, max_memory, partial)
    with evaluating(model), torch.no_grad():
        if table is None:
            source = source_in_memory(model, "tail", {None: None}, ids)
            search = FactSearch(source, grid, known, k)
            with progress_bar(progress, "searching", len(grid)) as done:
                search.run(done=done)
        else:
            search = _search_file(
                model, table, (grid, known, k, ids), (max_memory, partial), progress
            )
    return Facts(*search.found, vocabulary=names)


def _search_file(
    model: Any, table: Rows, asked: tuple[Any, ...], limits: tuple[Any, Any], progress: bool
) -> FactSearch:
    """Search a table in files within a limit of memory; keep what is found in a folder, if any."""
    grid, known, k, ids = asked
    cut = cut_of(grid, table, known, k, memory_limit(limits[0]), int(model.dim))

    def search_of(cut: Cut) -> FactSearch:
        source = InRows(model, "tail", {None: None}, cut.reader(table), ids)
        return FactSearch(source, replace(grid, batch_size=cut.per_pass), known, k)

    with keeping(limits[1], table, cut, lambda: fingerprint(search_of(cut), table)) as (kept, own):
        search = search_of(own)
        rows, sizes = search.num_batches * len(table), (table.shape[1], table.row_bytes)
        with sweep_bar(progress, "searching", rows, *sizes) as advance:
            search.run(advance=advance, kept=kept)
    return search


def _axis(name: str, values: Any, count: int, names: Any) -> Tensor:
    """Return the ids of a slice, ascending; all of them where none are given."""
    if values is None:
        return torch.arange(count, dtype=torch.int64, device="cpu")
    ids = checked_ids_of(name, values, count, names).reshape(-1).cpu()
    check_unique(name, ids)
    return ids.sort().values
