"""Sections of a config: keys, types, defaults; source of docs/reference/config.md.

The text below a key, or below several keys, says what they mean.
"""

import math
import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from kgfast import datasets
from kgfast.eval.metrics import metric_named
from kgfast.losses import LOSSES
from kgfast.models import CP, RESCAL, ComplEx, ConvE, DistMult, Model, RotatE, TransE
from kgfast.models.tntcomplex import TNTComplEx

MODELS: dict[str, type[Model]] = {
    cls.__name__.lower(): cls
    for cls in (RotatE, TransE, DistMult, ComplEx, ConvE, CP, RESCAL, TNTComplEx)
}
_LOSSES: dict[str, Any] = {name: loss for name, loss in LOSSES.items() if loss.over != "crops"}
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_own(name: str) -> bool:
    """Return whether a model or a loss is the user's own, named by its import path."""
    return ":" in name


def losses_of(mode: str) -> tuple[str, ...]:
    """Return the names of the losses that a mode trains with."""
    over = "negatives" if mode == "negative" else "entities"
    of_mode = (name for name, loss in _LOSSES.items() if loss.over == over)
    return tuple(name for name in of_mode if mode != "kvsall" or _LOSSES[name].takes_several)


def _one_of(names: Iterable[str], value: str) -> str:
    if value not in names and not _PATH.fullmatch(value):
        known = ", ".join(names)
        raise ValueError(f"must be one of {known}, or an import path such as my.module:MyClass")
    return value


Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """Base of sections, without unknown keys; frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def arguments_of(self, make: Callable[..., Any]) -> dict[str, Any]:
        """Return the values of the keys that are arguments of a class or function.

        A key that is null is left out, for the default of the class or function.
        """
        return self.model_dump(include={*signature(make).parameters}, exclude_none=True)


class DatasetConfig(Section):
    """The dataset."""

    name: Annotated[str, Field(min_length=1, max_length=255)]
    """``<root>/<name>`` holds train.txt, or another layout of :func:`kgfast.datasets.load`."""
    root: Annotated[str, Field(max_length=4096)] = "data"
    """The folder of the datasets, or of this one."""
    columns: list[str | int] | None = None
    labels: list[str | int] | None = None
    types: list[str | int] | str | None = None
    split: list[float] | None = None
    seed: int = 0
    """For a table, ``<root>/kg.csv``: arguments of :func:`kgfast.datasets.load`."""

    def folder(self, data: str | os.PathLike[str] | None = None) -> Path:
        """Return the folder of the dataset in ``data``, or else in the root.

        A FileNotFoundError says where a dataset is missing.
        """
        root = Path(self.root if data is None else data).expanduser()
        if (root / self.name).exists():
            return root / self.name
        files = (root.glob(name) for name in ("*train*", "dataset.yaml", "tkgl-*"))
        if root.is_file() or any(map(any, files)):
            return root
        raise FileNotFoundError(
            f"no dataset {self.name}: neither {root / self.name} nor {root} holds train.txt; "
            f"{'set dataset.root to' if data is None else '--data must be'} the folder that "
            f"contains it"
        )

    def load(self, data: str | os.PathLike[str] | None = None) -> datasets.Dataset:
        """Read the dataset; errors are those of :meth:`folder` and :func:`kgfast.datasets.load`."""
        options = self.model_dump(exclude={"name", "root"})
        return datasets.load(self.folder(data), self.name, **options)


class ModelConfig(Section):
    """The model."""

    name: Annotated[str, AfterValidator(partial(_one_of, MODELS))]
    """``rotate``, ``transe``, ``distmult``, ``complex``, ``conve``, ``cp``, ``rescal``; for quads
    ``tntcomplex`` (docs/how-to/temporal.md); or ``my.module:MyModel``: docs/how-to/own_model.md."""
    base_dim: Count
    """``dim`` of the model: complex dimensions for rotate and complex, of each half for cp."""
    gamma: Positive = 12.0
    """Margin of rotate and transe, added to the score in losses; also sets the initial range."""
    norm: Literal["modulus", "l1", "l2"] | None = None
    """rotate: ``modulus`` (default) or ``l2``; transe: ``l1`` (default) or ``l2``."""
    init_range: Positive | None = None
    """Draw entities and relations uniformly within +- this number; by default as the model does."""
    init_std: Positive | None = None
    """Draw entities and relations from a normal distribution with this standard deviation; not with
    init_range."""
    reciprocal: bool = False
    """Add inverse relations, and predict a head as the tail of the inverse
    (:class:`kgfast.Reciprocal`; Lacroix et al. 2018). conve always has them."""
    use_rscf: bool = False
    """Filter entities and relations of rotate or transe by RSCF, with sampled negatives."""
    embedding_height: Count = 20
    """For conve: rows are reshaped to ``embedding_height x (base_dim / embedding_height)``."""
    channels: Count = 32
    kernel_size: Count = 3
    input_dropout: Fraction = 0.2
    feature_dropout: Fraction = 0.2
    hidden_dropout: Fraction = 0.3
    initial_bias: float = 0.0
    """For conve: the options of :class:`kgfast.ConvE`."""
    options: dict[str, JsonValue] = {}
    """For a model of your own: the keyword arguments of its ``init`` beside ``seed``."""


class MedConfig(Section):
    """Croppable embeddings (Zhu et al. 2025), trained with a loss of their own."""

    dims: Annotated[list[Count], Field(min_length=1)]
    """Widths of the sub-models, increasing; each is evaluated."""
    submodels_per_step: Count | None = None
    """Number of consecutive sub-models that a step trains; all by default."""
    crop: Literal["prefix", "split"] = "prefix"
    loss_weight: Literal["exp", "sigmoid"] = "exp"
    scales: Annotated[list[float], Field(min_length=3, max_length=3)] = [1.0, 1.0, 1.0]
    learnable: bool = True
    """The options of :class:`kgfast.MED`."""


class EarlyStoppingConfig(Section):
    """Stopping after evaluations on valid without a better ``train.save_best_metric``."""

    patience: Count
    """Number of such evaluations in a row."""


class TrainConfig(Section):
    """Length, mode, evaluations and checkpoints of a run."""

    epochs: Count | None = None
    steps: Count | None = None
    """Length of the run: one of the two; ``--set`` of one replaces the other. An epoch is one step
    per batch and side. A resumed run may have another length: with ``sched.name: constant`` it has
    the steps of one run of that length."""
    mode: Literal["negative", "1vsall", "kvsall"] = "negative"
    """Score positives against drawn negatives; or queries against all entities, with one target
    each (1vsall) or with all known ones (kvsall)."""
    eval_every: CountOrZero = 0
    """Steps between evaluations on valid; 0: none before the end."""
    save_every: CountOrZero = 0
    """Steps between checkpoints, besides those of evaluations and the end."""
    log_every: Count = 100
    """Steps between rows of the log."""
    keep_every: CountOrZero = 0
    """Steps between models kept as ``model_<n>.safetensors`` for ``kgfast explain``; 0: none."""
    save_best_metric: Annotated[str, AfterValidator(lambda name: metric_named(name).name)] = "mrr"
    """The metric of ``best.safetensors`` and early stopping: any of ``Ranks.metrics``, such as
    ``mrr``, or ``hits@K`` of any K. Evaluations report that ``hits@K`` too."""
    early_stopping: EarlyStoppingConfig | None = None
    """Stop before the end."""
    amp: Literal["bf16"] | None = None
    """Mixed precision, by autocast of torch."""
    capture: Literal["auto", "always", "never"] = "auto"
    """On a GPU, capture a step in a CUDA graph and replay it, with equal bits. A line says what
    forbids it: several processes, ``kvsall``, code of your own, or a wait of the host. With
    ``always`` that is an error."""
    track: list[Literal["tensorboard", "wandb", "mlflow"]] = []
    """Send the rows of the log to trackers; each needs the extra of its name
    (docs/how-to/callbacks.md). A resumed run continues their series."""
    out_dir: str | None = None
    """The run folder, if the command line names none."""
    table_folder: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Store the entity table and its optimizer state in scratch files of this folder (checkpoints
    hold the same tensors), for tables larger than memory: needs ``train.mode: negative``, a
    ``row_*`` optimizer and the CPU."""


class DataConfig(Section):
    """Batches and negatives."""

    train_bs: Count = 1024
    """Triples (kvsall: pairs of entity and relation) of a step."""
    test_bs: Count | None = None
    """Queries ranked at once; automatic by default. Ranks do not depend on it."""
    neg_size: Count = 64
    """Negatives per positive, or in the pool that a batch shares."""
    negatives: Literal["per_row", "shared"] = "per_row"
    """Draw negatives for each positive, or one pool for a batch."""
    filter_negatives: bool = False
    """Exclude known triples from the negatives."""
    subsampling: bool = False
    """Weight triples by ``sqrt(1 / (count(h, r) + count(r, t)))``, as the official RotatE code."""
    target_weights: bool = False
    """For cross_entropy: weight triples by :func:`kgfast.losses.frequency_weights` of targets."""


class LossConfig(Section):
    """The loss; formulas in :mod:`kgfast.losses`."""

    name: Annotated[str, AfterValidator(partial(_one_of, _LOSSES))] = "nssa"
    """For ``train.mode: negative``: ``nssa``, ``margin``, ``logistic`` or ``my.module:MyLoss``
    (docs/how-to/own_model.md); for 1vsall: ``bce`` or ``cross_entropy``; for kvsall: ``bce``."""
    alpha: NonNegative = 1.0
    """For nssa: the adversarial temperature."""
    margin: NonNegative = 1.0
    """For margin: the least distance of a positive above a negative."""
    label_smoothing: Fraction = 0.0
    """For bce and cross_entropy."""
    smoothing_style: Literal["torch", "conve", "pykeen"] = "torch"
    """For bce: how labels are smoothed, as in :func:`kgfast.losses.bce`."""
    precision: Literal["float32", "bf16"] = "float32"
    """For bce and cross_entropy, of models whose scores are dot products: on a GPU ``bf16`` rounds
    factors to bfloat16, and trains faster (docs/reference/losses.md). Evaluation stays exact."""
    relation_weight: NonNegative = 0.0
    """Weight of the cross entropy of a triple's relation, given head and tail, beside the loss
    (relation prediction, Chen et al. 2021), for triples and every model but conve. 0: off."""
    options: dict[str, JsonValue] = {}
    """For a loss of your own: its hyperparameters."""


class RegularizerConfig(Section):
    """A penalty on the rows of a step; formulas in :mod:`kgfast.losses.regularizers`."""

    name: Literal["none", "n3", "l2", "dura"] = "none"
    """N3 (Lacroix et al. 2018) for distmult, complex, tntcomplex and cp; L2; or DURA (Zhang et al.
    2020) for these and rescal."""
    weight: NonNegative = 0.0
    """Factor of the mean penalty over the queries of a step."""
    time_weight: NonNegative = 0.0
    """For tntcomplex: factor of :meth:`kgfast.TNTComplEx.smoothness`, beside the other penalty."""


class OptimConfig(Section):
    """The optimizer."""

    name: Literal["row_adam", "adam", "row_adagrad", "adagrad", "sgd"] = "row_adam"
    """A ``row_`` optimizer updates only the entity rows of a step: all with 1vsall and kvsall."""
    lr: Positive
    """The learning rate."""
    weight_decay: NonNegative = 0.0
    """L2 penalty of the rows that a step updates, added to their gradients."""
    eps: Positive | None = None
    """1e-8 for adam, 1e-10 for adagrad by default."""
    grad_clip: NonNegative = 0.0
    """Largest norm of all gradients of a step together; 0: off."""


class SchedConfig(Section):
    """The learning rate over the run."""

    name: Literal["constant", "step", "linear", "cosine"] = "constant"
    """linear and cosine end at 0."""
    warmup_steps: CountOrZero = 0
    """Number of steps over which the rate rises linearly from 0."""
    milestones: list[Annotated[float, Field(gt=0, lt=1)]] = []
    """Fractions of the run after which ``step`` multiplies the rate by ``factor``."""
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """The factor of ``step``."""

    def rate(self, lr: float, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 0, of a run of ``steps`` steps."""
        if step < self.warmup_steps:
            return lr * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, steps - self.warmup_steps)
        if self.name == "linear":
            return lr * (1 - done)
        if self.name == "cosine":
            return lr * ((1 + math.cos(math.pi * done)) / 2)
        if self.name == "step":
            lr *= self.factor ** sum(step >= round(it * steps, 6) for it in self.milestones)
        return lr


class DistributedConfig(Section):
    """Training by several processes, which ``torchrun`` starts."""

    timeout: Positive = 600.0
    """Seconds that a process waits for the others before it names the missing ones."""


class RangeConfig(Section):
    """The values of a key, such as `optim.lr`, in trials."""

    low: float | None = None
    high: float | None = None
    """Bounds, both included; whole numbers if the key is one."""
    log: bool = False
    """Draw the logarithm evenly: as often between 0.001 and 0.01 as between 0.01 and 0.1."""
    choices: Annotated[list[Any], Field(min_length=1)] | None = None
    """The values, instead of low and high."""


class SearchConfig(Section):
    """The trials of ``kgfast search``; ``kgfast train`` ignores the section."""

    ranges: Annotated[dict[str, RangeConfig], Field(min_length=1)]
    """The keys that trials differ in, such as ``optim.lr``."""
    trials: Count | None = None
    """Number of trials."""
    minutes: Positive | None = None
    """Minutes of training and evaluations of all trials together."""
    first_rung: Count | None = None
    """Number of epochs (of steps, if ``train.steps`` is set) after which trials are first compared;
    a ninth of the run's by default. See docs/how-to/search.md."""
