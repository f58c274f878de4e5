"""Contradictions between the keys of a config."""

from collections.abc import Iterator
from typing import Any

from kgfast.losses import LOSSES
from kgfast.training.config.fields import is_own, losses_of
from kgfast.training.config.sections import OPTIONS, SearchConfig, Sections

_FITTING = {  # models by penalty
    "n3": ("distmult", "complex", "cp"),
    "dura": ("distmult", "complex", "cp", "rescal"),
}
_NORMS = {"rotate": ("modulus", "l2"), "transe": ("l1", "l2")}


def problems(config: Sections) -> Iterator[str]:
    """Yield a line per contradiction, beginning with a dotted key and a colon."""
    yield from _of_the_model(config)
    yield from _of_rscf(config)
    yield from _of_med(config)
    yield from _of_the_run(config)
    yield from _of_the_loss(config)
    yield from _of_the_regularizer(config)
    yield from _of_the_optimizer(config)
    if config.search is not None:
        yield from _of_the_ranges(config.search)


def _of_the_model(config: Sections) -> Iterator[str]:
    model, name = config.model, config.model.name
    allowed = _NORMS.get(name, ())
    if model.norm is not None and model.norm not in allowed:
        what = f"must be one of {', '.join(allowed)}" if allowed else "does not exist"
        yield f"model.norm: {what} for {name}; got {model.norm}"
    if is_own(name):
        for key in _changed(model, ("gamma",)):
            yield f"model.{key}: give {name} its own by model.options"
    elif model.options:
        yield f"model.options: only a model of your own has options; model.name is {name}"
    if model.init_range is not None and model.init_std is not None:
        yield "model.init_std: model.init_range says how entries start already; leave one out"
    if name != "conve":
        for key in _changed(model, OPTIONS["conve"]):
            yield f"model.{key}: only conve has it; model.name is {name}"
        return
    if model.reciprocal:
        yield "model.reciprocal: conve has inverse relations of its own; leave it out"
    if config.train.mode == "negative":
        yield "train.mode: must be kvsall or 1vsall for conve; got negative"
    height, kernel = model.embedding_height, model.kernel_size
    width, rest = divmod(model.base_dim, height)
    if rest:
        yield f"model.base_dim: {model.base_dim} is no multiple of embedding_height, {height}"
    elif kernel > min(width, 2 * height):
        yield f"model.kernel_size: must fit into the {2 * height} x {width} image; got {kernel}"


def _of_rscf(config: Sections) -> Iterator[str]:
    model, name = config.model, config.model.name
    if not model.use_rscf:
        if model.rscf_relation_transform is not None:
            yield "model.rscf_relation_transform: needs model.use_rscf"
        return
    if name not in ("rotate", "transe", "distmult", "complex"):
        yield f"model.use_rscf: goes with rotate, transe, distmult and complex; got {name}"
    elif name in ("distmult", "complex"):
        if model.rscf_relation_transform:
            yield f"model.rscf_relation_transform: {name} has a dot product; leave it out"
    elif config.train.mode != "negative" and model.rscf_relation_transform is not False:
        yield (
            f"model.use_rscf: train.mode {config.train.mode} scores all entities, for which "
            "filtered relations have no loss; set model.rscf_relation_transform=false"
        )
    if model.norm == "l2" and name == "rotate":
        yield "model.norm: must be modulus for rotate with model.use_rscf; got l2"


def _of_med(config: Sections) -> Iterator[str]:
    med, model = config.med, config.model
    if med is None or not med.enabled:
        return
    count = len(med.dims)
    if med.dims != sorted(set(med.dims)):
        yield f"med.dims: must increase; got {med.dims}"
    elif med.dims[-1] != model.base_dim:
        yield f"med.dims: the last must be model.base_dim ({model.base_dim}); got {med.dims}"
    if (med.submodels_per_step or 0) > count:
        yield (
            f"med.submodels_per_step: must be at most {count}, the number of med.dims; got "
            f"{med.submodels_per_step}"
        )
    if model.name in ("conve", "rescal"):
        yield f"med: {model.name} cannot be cropped; set med.enabled=false"
    if model.name == "cp" and med.crop == "split":
        yield "med.crop: split cuts complex rows, which cp has not; leave it out"
    if model.norm == "l2" and model.name == "rotate":
        yield "med: rotate with model.norm l2 cannot be cropped; leave the norm out"
    if config.train.mode != "negative":
        yield f"train.mode: must be negative with med; got {config.train.mode}"
        return
    for key in _changed(config.loss, ("name", *config.loss.hyperparameters())):
        yield f"loss.{key}: med has its own loss; leave it out"
    if config.data.subsampling:
        yield "data.subsampling: the loss of med has its own weights; leave it out"


def _of_the_run(config: Sections) -> Iterator[str]:
    train = config.train
    if (train.epochs is None) == (train.steps is None):
        which = "neither" if train.epochs is None else "both: set one of them to null"
        yield f"train.epochs: exactly one of train.epochs and train.steps must be set; got {which}"
    if not train.eval_every:
        if train.early_stopping is not None:
            yield "train.early_stopping: needs evaluations; set train.eval_every"
        if config.sched.name == "plateau":
            yield "sched.name: plateau needs evaluations; set train.eval_every"
    if train.keep and not train.save_every:
        yield "train.keep: needs train.save_every"
    if train.table_folder is not None:
        if is_own(config.model.name):
            yield "train.table_folder: files hold tables of kgfast's own models alone; leave it out"
        elif train.mode != "negative":
            yield f"train.table_folder: needs train.mode negative; {train.mode} uses every row"
        elif not config.optim.name.startswith("row_"):
            name = config.optim.name
            yield f"train.table_folder: {name} changes every row in each step; take row_adam"
    if train.mode != "negative":
        keys = ("neg_size", "negatives", "filter_negatives", "subsampling")
        for key in _changed(config.data, keys):
            yield f"data.{key}: train.mode {train.mode} draws no negatives; leave it out"


def _of_the_loss(config: Sections) -> Iterator[str]:
    loss, mode, model = config.loss, config.train.mode, config.model.name
    if is_own(loss.name):
        if mode != "negative":
            yield f"loss.name: {loss.name} goes with train.mode negative; got {mode}"
    elif loss.name not in losses_of(mode):
        allowed = ", ".join(losses_of(mode))
        yield f"loss.name: must be one of {allowed} with train.mode {mode}; got {loss.name}"
    for key in _changed(loss, tuple(type(loss).model_fields)):
        owners = [name for name, it in LOSSES.items() if key in it.hyperparameters()]
        if owners and loss.name not in owners:
            has = "has" if len(owners) == 1 else "have"
            yield f"loss.{key}: only {' and '.join(owners)} {has} it; loss.name is {loss.name}"
    if config.data.target_weights and loss.name != "cross_entropy":
        yield f"data.target_weights: only cross_entropy has them; loss.name is {loss.name}"
    if loss.options and not is_own(loss.name):
        yield f"loss.options: only a loss of your own has them; loss.name is {loss.name}"
    if loss.precision != "float32" and model in _NORMS:
        yield f"loss.precision: {loss.precision} is for dot products, which {model} has not"
    if loss.relation_weight and model == "conve":
        yield "loss.relation_weight: conve would run the network for every relation; leave it out"
    if loss.relation_weight and mode == "kvsall":
        yield "loss.relation_weight: a query of train.mode kvsall has many tails; use 1vsall"


def _of_the_regularizer(config: Sections) -> Iterator[str]:
    regularizer, name = config.regularizer, config.regularizer.name
    fitting = _FITTING.get(name, (config.model.name,))
    if config.model.name not in fitting:
        yield (
            f"regularizer.name: {name} goes with {', '.join(fitting)}; "
            f"got model.name {config.model.name}"
        )
    if name == "dura" and config.train.mode == "kvsall":
        yield "regularizer.name: dura is of triples, of which a query of kvsall has many"
    if name == "dura" and not regularizer.weighted:
        yield "regularizer.weighted: dura is of triples, which count as they are; leave it out"
    if name not in ("none", "dura") and _changed(regularizer, ("product_weight",)):
        yield f"regularizer.product_weight: only dura has it; got {name}"
    if (name == "none") != (regularizer.weight == 0):
        yield (
            f"regularizer.weight: {regularizer.weight:g} and regularizer.name {name} contradict "
            "each other"
        )


def _of_the_optimizer(config: Sections) -> Iterator[str]:
    optim, sched, steps = config.optim, config.sched, config.train.steps
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
    if steps is not None and sched.warmup_steps > steps:
        yield f"sched.warmup_steps: must be at most train.steps ({steps}); got {sched.warmup_steps}"


def _of_the_ranges(search: SearchConfig) -> Iterator[str]:
    for key, it in search.ranges.items():
        where = f"search.ranges.{key}"
        if it.choices is not None:
            if (it.low, it.high, it.log) != (None, None, False):
                yield f"{where}: has choices; leave low, high and log out"
        elif it.low is None or it.high is None:
            yield f"{where}: needs low and high, or choices"
        elif it.low >= it.high:
            yield f"{where}: low must be less than high; got {it.low:g} and {it.high:g}"
        elif it.log and it.low <= 0:
            yield f"{where}: low must be greater than 0 with log; got {it.low:g}"


def _changed(section: Any, keys: tuple[str, ...]) -> list[str]:
    """Return the keys with other values than the default."""
    fields = type(section).model_fields
    return [key for key in keys if getattr(section, key) != fields[key].default]
