"""What no single key of a config can know: which values do not fit each other."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgfast.training.config import Config

_LOSSES = {
    "negative": ("nssa", "margin", "logistic"),
    "1vsall": ("cross_entropy", "bce"),
    "kvsall": ("bce",),
}
_NORMS = {"rotate": ("modulus", "l2"), "transe": ("l1", "l2")}
_OF_CONVE = (
    "embedding_height",
    "channels",
    "kernel_size",
    "input_dropout",
    "feature_dropout",
    "hidden_dropout",
)


def problems(config: "Config") -> Iterator[str]:
    """A line per contradiction, each beginning with a dotted key and a colon."""
    yield from _not_available(config)
    yield from _of_the_model(config)
    yield from _of_the_run(config)
    yield from _of_the_mode(config)
    yield from _of_the_loss(config)
    yield from _of_the_optimizer(config)


def _not_available(config: "Config") -> Iterator[str]:
    if config.model.use_rscf:
        yield "model.use_rscf: RSCF is not available in this version; set it to false"
    if config.med is not None and config.med.enabled:
        yield "med: croppable embeddings are not available in this version; set med.enabled=false"


def _of_the_model(config: "Config") -> Iterator[str]:
    model = config.model
    allowed = _NORMS.get(model.name, ())
    if model.norm is not None and model.norm not in allowed:
        what = f"must be one of {', '.join(allowed)}" if allowed else "does not exist"
        yield f"model.norm: {what} for {model.name}; got {model.norm}"
    if model.name != "conve":
        for key in _changed(model, _OF_CONVE):
            yield f"model.{key}: only conve has it; model.name is {model.name}"
        return
    height, kernel = model.embedding_height, model.kernel_size
    width, rest = divmod(model.base_dim, height)
    if rest:
        yield (
            f"model.base_dim: must be a multiple of model.embedding_height ({height}) to be "
            f"reshaped to {height} rows; got {model.base_dim}"
        )
    elif kernel > min(width, 2 * height):
        yield (
            f"model.kernel_size: must fit into the {2 * height} x {width} image of entity and "
            f"relation; got {kernel}"
        )


def _of_the_run(config: "Config") -> Iterator[str]:
    train = config.train
    if (train.epochs is None) == (train.steps is None):
        given = "neither" if train.epochs is None else "both"
        yield f"train.epochs: exactly one of train.epochs and train.steps must be set; got {given}"
    if not train.eval_every:
        if train.early_stopping is not None:
            yield "train.early_stopping: needs evaluations; set train.eval_every"
        if config.sched.name == "plateau":
            yield "sched.name: plateau needs evaluations; set train.eval_every"
    if train.keep and not train.save_every:
        yield "train.keep: needs train.save_every"


def _of_the_mode(config: "Config") -> Iterator[str]:
    mode = config.train.mode
    if mode != "negative":
        keys = ("neg_size", "negatives", "filter_negatives", "subsampling")
        for key in _changed(config.data, keys):
            yield f"data.{key}: train.mode {mode} draws no negatives; leave it out"
    if config.loss.name not in _LOSSES[mode]:
        allowed = ", ".join(_LOSSES[mode])
        yield f"loss.name: must be one of {allowed} with train.mode {mode}; got {config.loss.name}"
    if config.model.name == "conve" and mode == "negative":
        yield "train.mode: must be kvsall or 1vsall for conve; got negative"


def _of_the_loss(config: "Config") -> Iterator[str]:
    loss = config.loss
    if loss.name != "nssa" and _changed(loss, ("alpha",)):
        yield f"loss.alpha: only nssa has it; loss.name is {loss.name}"
    if loss.name != "margin" and _changed(loss, ("margin",)):
        yield f"loss.margin: only margin has it; loss.name is {loss.name}"
    if loss.label_smoothing and loss.name not in ("bce", "cross_entropy"):
        yield f"loss.label_smoothing: only bce and cross_entropy have it; loss.name is {loss.name}"
    if loss.smoothing_style != "torch" and loss.name != "bce":
        yield f"loss.smoothing_style: must be torch unless loss.name is bce; got {loss.name}"
    regularizer = config.regularizer
    if (regularizer.name == "none") != (regularizer.weight == 0):
        yield (
            f"regularizer.weight: {regularizer.weight:g} and regularizer.name {regularizer.name} "
            "contradict each other"
        )


def _of_the_optimizer(config: "Config") -> Iterator[str]:
    optim, sched = config.optim, config.sched
    if "adam" not in optim.name and _changed(optim, ("betas",)):
        yield f"optim.betas: only adam has them; optim.name is {optim.name}"
    if optim.name == "sgd" and optim.eps is not None:
        yield "optim.eps: sgd has none"
    if (sched.name == "step") != bool(sched.milestones):
        yield (
            f"sched.milestones: {sched.milestones} and sched.name {sched.name} contradict each "
            "other; step needs fractions of the run such as [0.6]"
        )
    if sched.milestones != sorted(set(sched.milestones)):
        yield f"sched.milestones: must increase; got {sched.milestones}"
    steps = config.train.steps
    if steps is not None and sched.warmup_steps > steps:
        yield f"sched.warmup_steps: must be at most train.steps ({steps}); got {sched.warmup_steps}"


def _changed(section: Any, keys: tuple[str, ...]) -> list[str]:
    """The keys whose value is not the default."""
    fields = type(section).model_fields
    return [key for key in keys if getattr(section, key) != fields[key].default]
