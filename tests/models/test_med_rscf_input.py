"""Errors of MED and RSCF."""

import pytest
import torch

from kgfast import CP, MED, RESCAL, RSCF, ConvE, Reciprocal, RotatE, losses, rank
from kgfast.losses import sampled_scores
from support.wrapped_models import TRIPLES, D, N, R, base, wrapped


@pytest.mark.parametrize("dims", [8, None, []])
def test_dims_that_are_no_sequence(dims):
    with pytest.raises(TypeError, match="dims must be a sequence of ints"):
        MED(base("rotate"), dims)


@pytest.mark.parametrize("name", ["A1", "A2", "A3"])
@pytest.mark.parametrize("dims", [None, [4, D]])
@pytest.mark.parametrize(
    "use",
    [
        lambda rscf, dims: rank(rscf, TRIPLES, dims=dims),
        lambda rscf, dims: sampled_scores(rscf, TRIPLES, TRIPLES[:, :1], "tail", dims),
    ],
    ids=["rank", "training"],
)
def test_a_matrix_that_does_not_fit_is_named(name, dims, use):
    rscf = wrapped("rotate")[1]
    setattr(rscf, name, torch.nn.Parameter(torch.zeros(20, 20, dtype=torch.float64)))
    message = rf"{name} must have shape \[\d+, \d+\]; got \[20, 20\]"
    with pytest.raises(ValueError, match=message):
        use(rscf, dims)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RSCF(RotatE.init(N, R, D, norm="l2")), "norm modulus .*; got raw, l2, halves"),
        (lambda: RSCF(RotatE.init(N, R, D, layout="interleaved")), "halves; .*, interleaved"),
        (lambda: RSCF(base("complex")), "goes around RotatE and TransE; got ComplEx"),
        (lambda: MED(base("rotate"), [D], scales=None), "three finite numbers.*got None"),
        (lambda: MED(base("rotate"), [4, 2]), r"dims must increase; got \[4, 2\]"),
        (lambda: MED(base("rotate"), [4, 9]), r"dims must be in 1 \.\. 8; got 9"),
        (lambda: MED(base("rotate"), [D], 2), r"submodels_per_step must be in 1 \.\. 1"),
        (lambda: MED(base("rotate"), [2, 4]), "the last of dims must be the model's dim, 8"),
        (lambda: MED(MED(base("rotate"), [D]), [D]), "croppable already"),
        (lambda: MED(ConvE.init(N, R, 50), [10, 50], crop="split"), "ConvE cannot be cropped"),
        (
            lambda: losses.med(MED(base("rotate"), [2, D]), TRIPLES, TRIPLES[:, 0], dims=[D, 2]),
            r"dims must increase; got \[8, 2\]",
        ),
        (lambda: MED(base("rotate"), [4], crop="suffix"), "crop must be one of prefix, split"),
        (lambda: MED(base("rotate"), [D], scales=(1, 1)), r"three finite numbers.*got \(1, 1\)"),
        (lambda: MED(base("rotate"), [D], scales=(1, 1, torch.inf)), "three finite numbers"),
        (lambda: MED(CP.init(N, R, D), [4, D], crop="split"), "CP cannot be cropped"),
        (lambda: MED(Reciprocal(CP.init(N, 4, D)), [4, D], crop="split"), "CP cannot be cropped"),
        (lambda: CP.init(N, R, D).first_columns(4), "CP cannot be cropped"),
        (lambda: RESCAL.init(N, R, D).first_columns(4), "RESCAL cannot be cropped"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
