"""Models that DGL-KE trained: ``config.json`` and memory-mapped ``.npy`` tables, without DGL-KE."""

import os
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from kgfast.adapters.foreign import Options, check_width, read_npy, read_options
from kgfast.models import RESCAL, ComplEx, DistMult, RotatE, TransE
from kgfast.text import escaped, reading, shown

__all__ = ["load_dglke"]

_NORMS = {"TransE": "l2", "TransE_l1": "l1", "TransE_l2": "l2"}
_PRODUCTS: dict[str, Any] = {"DistMult": DistMult, "ComplEx": ComplEx, "RESCAL": RESCAL}
_MODELS = ("RotatE", *_NORMS, *_PRODUCTS)


def load_dglke(folder: str | os.PathLike[str], *, as_table: bool = False) -> Any:
    """Load the tables that DGL-KE saved (``dglke_train``, its ``save_path``).

    Tables are memory-mapped: only rows that are read are loaded. Writes, such as those of training,
    stay in this process. Ids are those of ``entities.tsv`` and ``relations.tsv`` (or the built-in
    ``.dict`` files) beside the data, which :func:`kgfast.datasets.load` keeps.

    Parameters
    ----------
    folder
        The folder with ``config.json``, ``<dataset>_<model>_entity.npy`` and ``..._relation.npy``.
    as_table : bool
        Leave entities in the file as a :class:`kgfast.tables.Table`, which is read in blocks within
        ``max_memory`` of :func:`kgfast.rank`.

    Returns
    -------
    Model
        RotatE (halves, raw relations in units that gamma sets), TransE, TransE_l1, TransE_l2,
        DistMult, ComplEx, RESCAL.

    Raises
    ------
    FileNotFoundError
        If a file is missing.
    ValueError
        If config.json cannot be read or lacks a key (for RotatE also ``gamma``, without which
        relations mean nothing), the model is TransR or SimplE, or a table has another shape.
    """
    with reading(folder, "cannot be loaded"):
        return _loaded(Path(folder), as_table)


class _Trained(Options):
    model_name: str
    hidden_dim: PositiveInt
    dataset: str
    gamma: float | None = None
    double_ent: Any = None
    double_rel: Any = None


def _loaded(folder: Path, as_table: bool) -> Any:
    path = folder / "config.json"
    config = read_options(path, "DGL-KE writes it beside the tables", _Trained)
    name, dataset, dim = config.model_name, config.dataset, config.hidden_dim
    if name not in _MODELS:
        raise ValueError(
            f"{path}: model {shown(name)} is not available; known: {', '.join(_MODELS)}"
        )
    stem = f"{dataset}_{name}"
    if Path(stem).name != stem or escaped(stem) != stem:
        raise ValueError(f"{path}: dataset must be a name; got {shown(dataset)}")
    paths = [folder / f"{stem}_{what}.npy" for what in ("entity", "relation")]
    missing = " (dataset and model_name of config.json)"
    entity = read_npy(paths[0], missing, as_table=as_table)
    relation = read_npy(paths[1], missing)
    doubled = [bool(config.double_ent), bool(config.double_rel)]
    widths = [dim * (1 + is_doubled) for is_doubled in doubled]
    if name == "RESCAL":
        widths[1] *= widths[0]
    for file, table, is_doubled, width in zip(
        paths, (entity, relation), doubled, widths, strict=True
    ):
        check_width(f"{file}:", table, dim, is_doubled, width)
    if name in _PRODUCTS:
        return _PRODUCTS[name](entity, relation)
    if config.gamma is None:
        raise ValueError(f"{path}: gamma: Field required")
    if name in _NORMS:
        norm: Any = _NORMS[name]
        return TransE(entity, relation, norm=norm, gamma=config.gamma)
    if doubled != [True, False]:
        raise ValueError(
            f"{path}: RotatE has double_ent and not double_rel; got {entity.shape[1]} and "
            f"{relation.shape[1]} columns"
        )
    return RotatE(entity, relation, gamma=config.gamma)
