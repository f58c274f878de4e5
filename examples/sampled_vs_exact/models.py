"""Eight short trainings for a graph: overrides of the package's default configs."""

from pathlib import Path

from kgfast.datasets import Dataset
from kgfast.training import Config, RunFolder, Trainer
from kgfast.training.config import find_config

CHECKPOINTS = 3  # number for each run, at equal distances
NOMINAL_MINUTES = 5.0  # duration of the steps in MODELS on one core of an AMD EPYC, WN18RR

_POOL = (
    "train.mode=negative",
    "data.train_bs=512",
    "data.neg_size=256",
    "data.negatives=shared",
    "loss.name=nssa",
    "optim.name=row_adam",
    "sched.name=linear",
    "sched.warmup_steps=0",
)
_BILINEAR = (*_POOL, "model.init_range=null", "optim.lr=1e-2", "regularizer.weight=1e-2")
# Name of a model: its default config, steps of NOMINAL_MINUTES, and overrides.
MODELS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "rotate": ("rotate", 28_800, ("model.base_dim=64", *_POOL)),
    "transe": ("transe", 34_800, ("model.base_dim=128", *_POOL)),
    "distmult": ("distmult", 30_000, ("model.base_dim=128", *_BILINEAR)),
    "complex": ("complex", 30_000, ("model.base_dim=64", *_BILINEAR)),
    "cp": ("cp", 34_800, ("model.base_dim=64", *_BILINEAR)),
    "rescal": ("rescal", 26_400, ("model.base_dim=48", *_BILINEAR, "optim.lr=3e-3")),
    "conve": (
        "conve",
        7_500,
        ("model.base_dim=100", "model.embedding_height=10", "model.channels=16"),
    ),
    "rscf": (
        "rotate",
        14_400,
        ("model.base_dim=32", "model.use_rscf=true", "model.reciprocal=false", *_POOL),
    ),
}
_COMPARED = ("seed", "model", "data", "loss", "regularizer", "optim", "sched")


def config_of(name: str, graph: Path, minutes: float, threads: int | None = None) -> Config:
    """Return the config of a short training.

    Parameters
    ----------
    name
        A key of MODELS.
    graph
        The folder of the data set.
    minutes
        Expected duration on one core of an AMD EPYC; the number of steps is in proportion.
    threads
        Threads of the training; by default those of torch.
    """
    if not minutes > 0:
        raise ValueError(f"minutes must be above 0; got {minutes}")
    base, steps, overrides = MODELS[name]
    third = max(1, round(steps * minutes / NOMINAL_MINUTES / CHECKPOINTS))
    lengths = {
        "steps": CHECKPOINTS * third,
        "keep_every": third,
        "save_every": max(1, third // 4),
        "eval_every": 0,
        "early_stopping": "null",
    }
    return Config.from_yaml(
        find_config(f"default/{base}"),
        [
            *overrides,
            f"dataset.root={graph.resolve().parent}",
            f"dataset.name={graph.name}",
            f"threads={'null' if threads is None else threads}",
            *(f"train.{key}={value}" for key, value in lengths.items()),
        ],
    )


def trained(folder: Path, config: Config, dataset: Dataset) -> list[Path]:
    """Train a model unless its run has ended, and return the paths of its checkpoints.

    Raises
    ------
    ValueError
        If the folder holds a run of another config or length.
    """
    run = RunFolder(folder)
    if run.result.is_file():
        before = run.read_config()
        differs = [it for it in _COMPARED if getattr(before, it) != getattr(config, it)]
        if differs or before.train.steps != config.train.steps:
            raise ValueError(
                f"{folder}: holds a run of {before.train.steps:,} steps. Its "
                f"{', '.join(differs) or 'length'} differs from this study "
                f"({config.train.steps:,} steps): name another folder, or the same --minutes"
            )
    else:
        Trainer(config, folder, dataset=dataset, progress=False).fit(resume=True)
    checkpoints = run.models()
    if len(checkpoints) != CHECKPOINTS:
        raise ValueError(f"{folder}: {len(checkpoints)} checkpoints; expected {CHECKPOINTS}")
    return checkpoints
