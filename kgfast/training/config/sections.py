"""Sections of a config: keys, types, defaults, meanings; source of docs/reference/config.md."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kgfast.losses import LOSSES
from kgfast.training.config.fields import (
    Clean,
    Columns,
    Count,
    CountOrZero,
    Fraction,
    LossName,
    Metric,
    Mode,
    ModelName,
    NonNegative,
    NonNegativeOrOff,
    Number,
    OptimName,
    Options,
    Positive,
    SchedName,
    Word,
    is_own,
)


class Section(BaseModel):
    """Base of sections: no unknown key, no silent conversion, frozen."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DatasetConfig(Section):
    """The dataset.

    Attributes
    ----------
    name : str
        ``<root>/<name>`` holds train.txt (or another layout of :func:`kgfast.datasets.load`);
        upper and lower case do not matter.
    root : str
        The folder of the datasets, or of this one.
    test_on : {"test", "valid"}
        The split that is ranked at the end.
    columns : {"hrt", "htr", "rht", "rth", "thr", "trh"}, optional
        The order of columns in a folder of DGL-KE, if its ids do not show it: see
        :func:`kgfast.datasets.load`.
    clean : list of {"header", "comments", "blanks", "repeats", "overlaps"}
        Parts of the files to leave out: see :func:`kgfast.datasets.load`.
    """

    name: Annotated[str, Field(min_length=1, max_length=255)]
    root: Annotated[str, Field(max_length=4096)] = "data"
    test_on: Annotated[Literal["test", "valid"], Word] = "test"
    columns: Columns | None = None
    clean: list[Clean] = []

    def folder(self, data: str | os.PathLike[str] | None = None) -> Path:
        """Return the folder of the dataset in ``data``, or else in the root.

        A FileNotFoundError says where a dataset is missing.
        """
        root = Path(self.root if data is None else data).expanduser()
        if root.is_dir():
            # The exact name comes first: beside data/FB15K there may be another data/fb15k.
            own_first = sorted(root.iterdir(), key=lambda path: (path.name != self.name, path.name))
            for child in own_first:
                if child.name.casefold() == self.name.casefold() and child.is_dir():
                    return child
            if any(root.glob("*train*")) or (root / "dataset.yaml").is_file():
                return root
        raise FileNotFoundError(
            f"no dataset {self.name}: neither {root / self.name} nor {root} holds train.txt; "
            f"{'set dataset.root to' if data is None else '--data must be'} the folder that "
            f"contains it"
        )


OPTIONS = {  # keys of ModelConfig that only some models take
    "rotate": ("gamma",),
    "transe": ("gamma",),
    "conve": (
        "embedding_height",
        "channels",
        "kernel_size",
        "input_dropout",
        "feature_dropout",
        "hidden_dropout",
        "initial_bias",
    ),
}


class ModelConfig(Section):
    """The model.

    Attributes
    ----------
    name : {"rotate", "transe", "distmult", "complex", "conve", "cp", "rescal"}
        The model; or the import path ``my.module:MyModel`` of your own (docs/how-to/own_model.md).
    base_dim : int
        ``dim`` of the model: complex dimensions for rotate and complex, of each half for cp.
    gamma : float
        Margin of rotate and transe, added to the score in losses; also sets the initial range.
    norm : str, optional
        rotate: ``modulus`` (default) or ``l2``; transe: ``l1`` (default) or ``l2``.
    init_range : float, optional
        Draw entities and relations uniformly within +- this number; by default as the model does.
    init_std : float, optional
        Draw entities and relations from a normal distribution with this standard deviation; not
        with init_range.
    reciprocal : bool
        Add inverse relations, and predict a head as the tail of the inverse
        (:class:`kgfast.Reciprocal`; Lacroix et al. 2018). conve always has them.
    use_rscf : bool
        Filter entities and relations by RSCF; not with conve, cp and rescal.
    rscf_relation_transform : bool, optional
        Filter relations by RSCF, too: by default with rotate and transe, which can.
    embedding_height : int
        For conve: rows are reshaped to ``embedding_height x (base_dim / embedding_height)``.
    channels, kernel_size, input_dropout, feature_dropout, hidden_dropout, initial_bias
        For conve: the options of :class:`kgfast.ConvE`.
    options : mapping
        For a model of your own: the keyword arguments of its ``init`` beside ``seed``.
    """

    name: ModelName
    base_dim: Count
    gamma: Positive = 12.0
    norm: Annotated[Literal["modulus", "l1", "l2"] | None, Word] = None
    init_range: Positive | None = None
    init_std: Positive | None = None
    reciprocal: bool = False
    use_rscf: bool = False
    rscf_relation_transform: bool | None = None
    embedding_height: Count = 20
    channels: Count = 32
    kernel_size: Count = 3
    input_dropout: Fraction = 0.2
    feature_dropout: Fraction = 0.2
    hidden_dropout: Fraction = 0.3
    initial_bias: Number = 0.0
    options: Options = {}

    @property
    def has_inverses(self) -> bool:
        """Return whether the relation table holds inverses after the relations."""
        return self.reciprocal or self.name == "conve"


class MedConfig(Section):
    """Croppable embeddings (Zhu et al. 2025), trained with a loss of their own.

    Attributes
    ----------
    enabled : bool
        ``false`` turns the section off.
    dims : list of int
        Widths of the sub-models, increasing; each is evaluated.
    submodels_per_step : int, optional
        Number of consecutive sub-models that a step trains; all by default.
    crop, loss_weight, scales, learnable
        The options of :class:`kgfast.MED`.
    positive_weight : {"softmax", "inverse"}
        An option of :class:`kgfast.MED`. ``inverse`` weights end a run with an error if a score
        falls on their pole.
    """

    enabled: bool = True
    dims: Annotated[list[Count], Field(min_length=1)]
    submodels_per_step: Count | None = None
    crop: Annotated[Literal["prefix", "split"], Word] = "prefix"
    loss_weight: Annotated[Literal["exp", "sigmoid"], Word] = "exp"
    positive_weight: Annotated[Literal["softmax", "inverse"], Word] = "softmax"
    scales: Annotated[list[Number], Field(min_length=3, max_length=3)] = [1.0, 1.0, 1.0]
    learnable: bool = True


class EarlyStoppingConfig(Section):
    """Stopping after evaluations on valid without a better ``train.save_best_metric``.

    A dataset without valid triples is an error at the start.

    Attributes
    ----------
    patience : int
        Number of such evaluations in a row.
    min_delta : float
        The least gain of a better evaluation.
    side : {"head", "tail"}, optional
        Watch the metric of one side; by default that of both. ``best.safetensors`` is the best of
        both in either case.
    """

    patience: Count
    min_delta: NonNegative = 0.0
    side: Annotated[Literal["head", "tail"] | None, Word] = None


class TrainConfig(Section):
    """Length, mode, evaluations and checkpoints of a run.

    Attributes
    ----------
    epochs, steps : int
        Length of the run: one of the two. An epoch is one step per batch and side. ``--set`` of one
        replaces the other in the file. A resumed run may have another length: with a schedule that
        does not span the run (``constant``, ``plateau``) the steps are those of one run of that
        length.
    max_minutes : float, optional
        End this invocation within so many minutes of its start: before a step after which the
        evaluation, the test and saving would not fit any more. At least one step is made;
        ``--resume`` has as many minutes again. The time of an evaluation is that of the one before,
        at first an estimate from rankings of 1, 32 and, if need be, 1,024 triples.
    max_total_minutes : float, optional
        End the run in the same way within so many minutes of training and evaluations of all
        invocations together. A larger number and ``--resume`` continue it.
    mode : {"negative", "1vsall", "kvsall"}
        Score positives against drawn negatives; or queries against all entities, with one target
        each (1vsall) or with all known ones (kvsall).
    eval_every : int
        Steps between evaluations on valid; 0: none before the end.
    save_every : int
        Steps between checkpoints; 0: with each evaluation and at the end.
    log_every : int
        Steps between rows of the log.
    keep : int
        Number of ``step_<n>.safetensors`` that are kept beside last, previous and best.
    keep_every : int
        Steps between models that are kept as ``model_<n>.safetensors``, without the optimizer's
        state, for ``kgfast explain``; their steps are logged. 0: none.
    save_best_metric : str
        The metric of ``best.safetensors``, early stopping and the plateau schedule: ``mrr``,
        ``mr``, ``amr``, ``amri``, or ``hits@K`` of any K. Evaluations report that ``hits@K`` too.
    early_stopping : EarlyStoppingConfig, optional
        Stop before the end.
    amp : {"bf16", "fp16"}, optional
        Mixed precision.
    accumulate : int
        Batches per optimizer step.
    out_dir : str, optional
        The run folder, if the command line names none.
    table_folder : str, optional
        Store the entity table and its optimizer state in files of this folder, mapped into memory,
        for tables larger than memory: needs ``train.mode: negative``, a ``row_*`` optimizer and the
        CPU. The files are scratch: checkpoints hold the same tensors.
    """

    epochs: Count | None = None
    steps: Count | None = None
    max_minutes: Positive | None = None
    max_total_minutes: Positive | None = None
    mode: Mode = "negative"
    eval_every: CountOrZero = 0
    save_every: CountOrZero = 0
    log_every: Count = 100
    keep: CountOrZero = 0
    keep_every: CountOrZero = 0
    save_best_metric: Metric = "mrr"
    early_stopping: EarlyStoppingConfig | None = None
    amp: Annotated[Literal["bf16", "fp16"] | None, Word] = None
    accumulate: Count = 1
    out_dir: str | None = None
    table_folder: Annotated[str, Field(min_length=1, max_length=4096)] | None = None


class DataConfig(Section):
    """Batches and negatives.

    Attributes
    ----------
    train_bs : int
        Triples (kvsall: pairs of entity and relation) of a step.
    test_bs : int, optional
        Queries ranked at once; automatic by default. Ranks do not depend on it.
    neg_size : int
        Negatives per positive, or in the pool that a batch shares.
    negatives : {"per_row", "shared"}
        Draw negatives for each positive, or one pool for a batch.
    filter_negatives : bool
        Exclude known triples from the negatives.
    subsampling : bool
        Weight triples by ``sqrt(1 / (count(h, r) + count(r, t)))``, as the official RotatE code.
    target_weights : bool
        For cross_entropy: weight triples by how common their target is, as the official DURA code
        does on WN18RR; see :func:`kgfast.losses.frequency_weights`.
    sides : {"alternate"}
        Tail and head batches take turns.
    """

    train_bs: Count = 1024
    test_bs: Count | None = None
    neg_size: Count = 64
    negatives: Annotated[Literal["per_row", "shared"], Word] = "per_row"
    filter_negatives: bool = False
    subsampling: bool = False
    target_weights: bool = False
    sides: Annotated[Literal["alternate"], Word] = "alternate"


class LossConfig(Section):
    """The loss; formulas in :mod:`kgfast.losses`.

    Attributes
    ----------
    name : {"nssa", "margin", "logistic", "bce", "cross_entropy"}
        The first three for ``train.mode: negative``; bce for 1vsall and kvsall, cross_entropy for
        1vsall. Or the import path ``my.module:MyLoss`` of your own for ``train.mode: negative``
        (docs/how-to/own_model.md).
    alpha : float
        For nssa: the adversarial temperature.
    margin : float
        For margin: the least distance of a positive above a negative.
    label_smoothing : float
        For bce and cross_entropy.
    smoothing_style : {"torch", "conve", "pykeen"}
        For bce: how labels are smoothed, as in :func:`kgfast.losses.bce`.
    precision : {"float32", "bf16"}
        For bce and cross_entropy, of models whose scores are dot products: on a GPU ``bf16`` rounds
        factors to bfloat16, as in :func:`kgfast.losses.bce`, and trains faster. A CPU trains in
        float32, with a warning. Evaluation is exact in either case.
    relation_weight : float
        Weight of relation prediction beside the loss (Chen et al. 2021), for every model but conve:
        the cross entropy of the relation of a triple, given its head and tail. 0: off.
    options : mapping
        For a loss of your own: its hyperparameters.
    """

    name: LossName = "nssa"
    alpha: NonNegative = 1.0
    margin: NonNegative = 1.0
    label_smoothing: Fraction = 0.0
    smoothing_style: Annotated[Literal["torch", "conve", "pykeen"], Word] = "torch"
    precision: Annotated[Literal["float32", "bf16"], Word] = "float32"
    relation_weight: NonNegative = 0.0
    options: Options = {}

    def hyperparameters(self) -> dict[str, Any]:
        """Return the hyperparameters of the formula of the loss."""
        if is_own(self.name):
            return dict(self.options)
        return {key: getattr(self, key) for key in LOSSES[self.name].formula.hyperparameters()}


class RegularizerConfig(Section):
    """A penalty on the rows of a step; formulas in :mod:`kgfast.losses.regularizers`.

    Attributes
    ----------
    name : {"none", "n3", "l2", "dura"}
        N3 (Lacroix et al. 2018) for distmult, complex and cp; L2; or DURA (Zhang et al. 2020) for
        distmult, complex, cp and rescal.
    weight : float
        Factor of the mean penalty over the queries of a step.
    weighted : bool
        For n3 and l2: count a row as often as the step uses it, so that rows are weighted by
        frequency; or, with ``false``, once.
    product_weight : float
        For dura: the weight of the products of entities and relations, beside the entities.
    """

    name: Annotated[Literal["none", "n3", "l2", "dura"], Word] = "none"
    weight: NonNegative = 0.0
    weighted: bool = True
    product_weight: NonNegative = 1.0


class OptimConfig(Section):
    """The optimizer.

    Attributes
    ----------
    name : {"row_adam", "adam", "row_adagrad", "adagrad", "sgd"}
        A row optimizer updates only the entity rows that a step used; with 1vsall and kvsall a step
        uses all of them.
    lr : float
        The learning rate.
    weight_decay : float
        L2 penalty of the rows that a step updates, added to their gradients.
    betas : list of two floats
        For adam: decay of the first and of the second moment.
    eps : float, optional
        1e-8 for adam, 1e-10 for adagrad by default.
    grad_clip : float
        Largest norm of all gradients of a step together; 0: off.
    """

    name: OptimName = "row_adam"
    lr: Positive
    weight_decay: NonNegative = 0.0
    betas: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = [0.9, 0.999]
    eps: Positive | None = None
    grad_clip: NonNegativeOrOff = 0.0


class SchedConfig(Section):
    """The learning rate over the run.

    Attributes
    ----------
    name : {"constant", "step", "linear", "cosine", "plateau"}
        linear and cosine end at 0.
    warmup_steps : int
        Number of steps over which the rate rises linearly from 0.
    milestones : list of float
        Fractions of the run after which ``step`` multiplies the rate by ``factor``.
    factor : float
        The factor of ``step`` and ``plateau``.
    patience : int
        Evaluations without a better metric after which ``plateau`` multiplies by ``factor``.
    """

    name: SchedName = "constant"
    warmup_steps: CountOrZero = 0
    milestones: list[Annotated[Number, Field(gt=0, lt=1)]] = []
    factor: Annotated[Number, Field(gt=0, lt=1)] = 0.1
    patience: Count = 5


class DistributedConfig(Section):
    """Training by several processes, which ``torchrun`` starts; one process ignores the section.

    Attributes
    ----------
    tables : {"replicated", "sharded"}
        ``replicated``: every process holds all entities and sends the gradients of rows.
        ``sharded``: of ``n`` processes each holds every ``n``-th entity and fetches the rows that a
        step needs.
    timeout : float
        Seconds that a process waits for the others before it names the missing ones.
    """

    tables: Annotated[Literal["replicated", "sharded"], Word] = "replicated"
    timeout: Positive = 600.0


class Sections(Section):
    """All sections, and the keys outside of sections, which :class:`Config` documents."""

    seed: CountOrZero = 0
    device: Annotated[str, Word, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    threads: Annotated[Count, Field(le=1024)] | None = None
    dataset: DatasetConfig
    model: ModelConfig
    med: MedConfig | None = None
    train: TrainConfig
    data: DataConfig = DataConfig()
    loss: LossConfig = LossConfig()
    regularizer: RegularizerConfig = RegularizerConfig()
    optim: OptimConfig
    sched: SchedConfig = SchedConfig()
    distributed: DistributedConfig = DistributedConfig()
