"""The sections of a config: their keys, defaults and meanings."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kgfast.losses import LOSSES
from kgfast.training.config.fields import (
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
    Positive,
    SchedName,
    Word,
)


class Section(BaseModel):
    """A section: no key beyond its own, no silent conversion, unchangeable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DatasetConfig(Section):
    """What is learned.

    Attributes
    ----------
    name : str
        ``<root>/<name>`` holds train.txt (or another layout of :func:`kgfast.datasets.load`);
        upper and lower case do not matter.
    root : str
        The folder of the datasets, or of this one.
    test_on : {"test", "valid"}
        The split ranked at the end.
    columns : {"hrt", "htr", "rht", "rth", "thr", "trh"}, optional
        Of a folder that DGL-KE numbered, where its ids do not say it: see
        :func:`kgfast.datasets.load`.
    """

    name: Annotated[str, Field(min_length=1, max_length=255)]
    root: Annotated[str, Field(max_length=4096)] = "data"
    test_on: Annotated[Literal["test", "valid"], Word] = "test"
    columns: Columns | None = None

    def folder(self) -> Path:
        """The folder that holds the dataset.

        Raises
        ------
        FileNotFoundError
            If neither ``<root>/<name>`` nor a dataset in ``root`` exists.
        """
        root = Path(self.root).expanduser()
        if root.is_dir():
            # The very name first: beside data/FB15K there may be another data/fb15k.
            own_first = sorted(root.iterdir(), key=lambda path: (path.name != self.name, path.name))
            for child in own_first:
                if child.name.casefold() == self.name.casefold() and child.is_dir():
                    return child
            if any(root.glob("*train*")) or (root / "dataset.yaml").is_file():
                return root
        raise FileNotFoundError(
            f"no dataset {self.name}: neither {root / self.name} nor {root} holds train.txt; "
            "set dataset.root to the folder that holds it"
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
        Which one.
    base_dim : int
        ``dim`` of the model: complex dimensions for rotate and complex, of each half for cp.
    gamma : float
        Margin of rotate and transe, added to the score in losses; also sets the initial range.
    norm : str, optional
        rotate: ``modulus`` (default) or ``l2``; transe: ``l1`` (default) or ``l2``.
    init_range : float, optional
        Entities and relations start uniform in +- this; the model's own way by default.
    init_std : float, optional
        Entities and relations start normal, with this standard deviation; not with init_range.
    reciprocal : bool
        Relations have inverses of their own, and a head is predicted as the tail of the inverse
        (:class:`kgfast.Reciprocal`; Lacroix et al. 2018). conve has them anyway.
    use_rscf : bool
        Filter entities and relations as RSCF does; not with conve, cp and rescal.
    rscf_relation_transform : bool, optional
        Whether RSCF filters relations: by default wherever it can, with rotate and transe.
    embedding_height : int
        Of conve: rows are reshaped to ``embedding_height x (base_dim / embedding_height)``.
    channels, kernel_size, input_dropout, feature_dropout, hidden_dropout, initial_bias
        Of conve: as of :class:`kgfast.ConvE`.
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

    @property
    def has_inverses(self) -> bool:
        """Whether the relation table holds the relations and after them their inverses."""
        return self.reciprocal or self.name == "conve"


class MedConfig(Section):
    """Croppable embeddings (Zhu et al. 2025), trained with their own loss.

    Attributes
    ----------
    enabled : bool
        ``false`` trains without, whatever the section says.
    dims : list of int
        Widths of the sub-models, increasing; each is evaluated.
    submodels_per_step : int, optional
        Consecutive sub-models that a step trains; all by default.
    crop, loss_weight, scales, learnable
        As of :class:`kgfast.MED`.
    positive_weight : {"softmax", "inverse"}
        As of :class:`kgfast.MED`. ``inverse`` weights end a run with an error where a score falls
        on their pole.
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
    """Stop after evaluations without a better ``train.save_best_metric``.

    Attributes
    ----------
    patience : int
        How many evaluations in a row.
    min_delta : float
        What a better one gains at least.
    """

    patience: Count
    min_delta: NonNegative = 0.0


class TrainConfig(Section):
    """How long, in what mode, and what is kept.

    Attributes
    ----------
    epochs, steps : int
        How long: one of epochs and steps. An epoch is one step per batch and side. ``--set`` of one
        replaces the other one of the file.
    max_minutes : float, optional
        End this invocation within so many minutes of its start: the last step is the one after
        which another step, the evaluation, the test and saving would not fit any more. One step is
        made at least; ``--resume`` has as many minutes again. How long an evaluation takes is
        known from the one before; until then it is estimated from 64 queries.
    max_total_minutes : float, optional
        End the run in the same way within so many minutes of training and evaluations of all
        invocations together. A larger one and ``--resume`` go on.
    mode : {"negative", "1vsall", "kvsall"}
        What a positive is scored against: drawn negatives, or all entities, with one target each or
        with all known ones.
    eval_every : int
        Steps between evaluations on valid; 0: none before the end.
    save_every : int
        Steps between checkpoints; 0: with each evaluation and at the end.
    log_every : int
        Steps between rows of the log.
    keep : int
        How many ``step_<n>.safetensors`` are kept beside last, previous and best.
    keep_every : int
        Steps between models that are kept as ``model_<n>.safetensors``, without the optimizer's
        state, for ``kgfast explain``; their steps are logged. 0: none.
    save_best_metric : str
        What ``best.safetensors``, early stopping and the plateau schedule look at.
    early_stopping : EarlyStoppingConfig, optional
        When to stop before the end.
    amp : {"bf16", "fp16"}, optional
        Mixed precision.
    accumulate : int
        Batches per optimizer step.
    out_dir : str, optional
        The run folder, where the command line names none.
    table_folder : str, optional
        Hold the entity table and the optimizer's states of it in files of this folder, mapped into
        memory, where they exceed it: needs ``train.mode: negative``, a ``row_*`` optimizer and the
        CPU. The files are scratch: checkpoints hold what they hold.
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
        Each positive has negatives of its own, or all of a batch share a pool.
    filter_negatives : bool
        Known triples are not used as negatives.
    subsampling : bool
        Weights ``sqrt(1 / (count(h, r) + count(r, t)))`` as in the official RotatE code.
    sides : {"alternate"}
        Tail and head batches take turns.
    """

    train_bs: Count = 1024
    test_bs: Count | None = None
    neg_size: Count = 64
    negatives: Annotated[Literal["per_row", "shared"], Word] = "per_row"
    filter_negatives: bool = False
    subsampling: bool = False
    sides: Annotated[Literal["alternate"], Word] = "alternate"


class LossConfig(Section):
    """The loss; formulas in :mod:`kgfast.losses`.

    Attributes
    ----------
    name : {"nssa", "margin", "logistic", "bce", "cross_entropy"}
        The first three for ``train.mode: negative``; bce for 1vsall and kvsall, cross_entropy for
        1vsall.
    alpha : float
        Of nssa: its adversarial temperature.
    margin : float
        Of margin: how far a positive is to be above a negative.
    label_smoothing : float
        Of bce and cross_entropy.
    smoothing_style : {"torch", "conve", "pykeen"}
        Of bce: how labels are smoothed, as in :func:`kgfast.losses.bce`.
    precision : {"float32", "bf16"}
        Of bce and cross_entropy, of models whose scores are dot products: what is multiplied is
        rounded to bfloat16, as in :func:`kgfast.losses.bce`, and training is faster. Where a
        machine has no such products it goes on in float32, with a warning. Evaluation is exact
        whatever this says.
    relation_weight : float
        Of relation prediction beside the loss (Chen et al. 2021), by whatever model but conve: the
        cross entropy of the relation of a triple, given its head and tail. 0: without it.
    """

    name: LossName = "nssa"
    alpha: NonNegative = 1.0
    margin: NonNegative = 1.0
    label_smoothing: Fraction = 0.0
    smoothing_style: Annotated[Literal["torch", "conve", "pykeen"], Word] = "torch"
    precision: Annotated[Literal["float32", "bf16"], Word] = "float32"
    relation_weight: NonNegative = 0.0

    def hyperparameters(self) -> dict[str, Any]:
        """Return the hyperparameters of the loss that is named, for its formula."""
        return {key: getattr(self, key) for key in LOSSES[self.name].formula.hyperparameters()}


class RegularizerConfig(Section):
    """A penalty on the rows of a step; formulas in :mod:`kgfast.losses.regularizers`.

    Attributes
    ----------
    name : {"none", "n3", "l2", "dura"}
        N3 (Lacroix et al. 2018), for distmult, complex and cp; L2; or DURA (Zhang et al. 2020), for
        these and rescal.
    weight : float
        What its mean over the queries of a step is multiplied by in the loss.
    weighted : bool
        Of n3 and l2: a row counts as often as the step uses it, so that all rows are weighted by
        their frequency; or, with ``false``, once.
    product_weight : float
        Of dura: the weight of the products of entities and relations, beside the entities.
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
        A row optimizer touches only the entity rows that a step used; with 1vsall and kvsall that
        is all of them.
    lr : float
        The learning rate.
    weight_decay : float
        L2 on what a step touches, in the gradient.
    betas : list of two floats
        Of adam: decay of the first and of the second moment.
    eps : float, optional
        1e-8 for adam, 1e-10 for adagrad by default.
    grad_clip : float
        Largest norm of all gradients of a step together; 0 is off.
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
        The rate rises linearly from 0 over these.
    milestones : list of float
        Fractions of the run after which ``step`` multiplies by ``factor``.
    factor : float
        What ``step`` and ``plateau`` multiply the rate by.
    patience : int
        Evaluations without a better metric before ``plateau`` multiplies by ``factor``.
    """

    name: SchedName = "constant"
    warmup_steps: CountOrZero = 0
    milestones: list[Annotated[Number, Field(gt=0, lt=1)]] = []
    factor: Annotated[Number, Field(gt=0, lt=1)] = 0.1
    patience: Count = 5


class DistributedConfig(Section):
    """Training by several processes, which ``torchrun`` starts; of one, nothing of it matters.

    Attributes
    ----------
    tables : {"replicated", "sharded"}
        ``replicated``: every process holds all entities and sends the gradients of rows. With
        ``sharded`` it holds one of so many, and fetches the rows that a step needs.
    timeout : float
        Seconds that a process waits for the others, before it says who is missing.
    """

    tables: Annotated[Literal["replicated", "sharded"], Word] = "replicated"
    timeout: Positive = 600.0


class Sections(Section):
    """All sections, and the keys that are in none; what contradicts each other is for the checks.

    What the keys mean stands at :class:`kgfast.training.Config`.
    """

    seed: CountOrZero = 0
    device: Annotated[str, Word, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    threads: Count | None = None
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
