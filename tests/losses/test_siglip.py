"""kgfast.losses.siglip against the dense formula in float64."""

import copy
import pickle

import pytest
import torch
from torch.nn import functional

from kgfast import losses, ops
from support.memory import PeakMemory
from support.mistakes import each_of

NAN, INF = float("nan"), float("inf")
SCALE, BIAS = 10.0, -4.0
SIZES = [(1, 1), (2, 3), (17, 5), (130, 33), (512, 768)]
NUMBERS = [(SCALE, BIAS), (100.0, -16.0), (0.7, 0.0), (-3.0, 2.0)]
CASES = [
    *(
        size + of
        for size in SIZES
        for of in ((SCALE, BIAS), (100.0, -16.0), (0.7, 0.0), (-3.0, 2.0))
    ),
    (4200, 8, SCALE, BIAS),  # more queries than a block has
]


def pairs(count, width, dtype=torch.float32):
    """Draw normalized images and texts whose pairs are near each other."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(count, width, generator=generator, dtype=torch.float32)
    text = image + torch.randn(count, width, generator=generator, dtype=torch.float32)
    image, text = (functional.normalize(it, dim=1).to(dtype) for it in (image, text))
    return image, text


def dense(image, text, scale, bias):
    """Return the loss by logits."""
    logits = scale * image @ text.T + (0 if bias is None else bias)
    signs = 2 * torch.eye(len(image), dtype=logits.dtype) - 1
    return -functional.logsigmoid(signs * logits).sum() / len(image)


def graded(loss, *given, dtype=torch.float32):
    """Return a loss and its gradients, of copies of tensors and numbers in a dtype."""
    leaves = [torch.as_tensor(it).to(dtype).clone().requires_grad_() for it in given]
    found = loss(*leaves)
    return [found.detach(), *torch.autograd.grad(found, leaves)]


def worst_error(found, exact):
    """Return the largest error of any result, relative to the largest number of the result."""
    return max(
        float((one.double() - other).abs().max() / other.abs().max())
        for one, other in zip(found, exact, strict=True)
    )


@pytest.mark.parametrize(("count", "width", "scale", "bias"), CASES)
@pytest.mark.usefixtures("backend")
def test_value_and_gradients_are_within_1e5_of_float64(count, width, scale, bias):
    given = *pairs(count, width), scale, bias
    exact = graded(dense, *given, dtype=torch.float64)
    assert worst_error(graded(losses.siglip, *given), exact) < 1e-5


def test_float64_is_computed_in_float64():
    given = *pairs(9, 4), SCALE, BIAS
    found = graded(losses.siglip, *given, dtype=torch.float64)
    assert worst_error(found, graded(dense, *given, dtype=torch.float64)) < 1e-13


@pytest.mark.parametrize("wanted", range(4))
@pytest.mark.usefixtures("backend")
def test_each_gradient_alone(wanted):
    given = *pairs(6, 4), torch.tensor(SCALE), torch.tensor(BIAS)
    whole = graded(losses.siglip, *given)
    leaves = [it.clone().requires_grad_(place == wanted) for place, it in enumerate(given)]
    loss = losses.siglip(*leaves)
    assert torch.equal(loss.detach(), whole[0])
    (found,) = torch.autograd.grad(loss, [leaves[wanted]])
    assert torch.equal(found, whole[1 + wanted])


def test_numbers_tensors_and_no_bias():
    image, text = pairs(6, 4)
    assert torch.equal(
        losses.siglip(image, text, 3, 0.5),
        losses.siglip(image, text, torch.tensor([3.0], dtype=torch.float64), torch.tensor(0.5)),
    )
    bare = losses.siglip(image, text, 3)
    torch.testing.assert_close(bare, dense(image, text, 3, None))
    ones = [torch.tensor([it], requires_grad=True) for it in (3.0, 0.5)]
    losses.siglip(image, text, *ones).backward()
    assert [it.grad.shape for it in ones] == [(1,), (1,)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_as_autocast_makes_it(dtype):
    image, text = (it.requires_grad_() for it in pairs(40, 8, dtype=dtype))
    scale, bias = (torch.tensor(it, requires_grad=True) for it in (SCALE, BIAS))
    with torch.autocast("cpu", torch.bfloat16):
        loss = losses.siglip(image, text, scale, bias)
    assert loss.dtype == torch.float32
    leaves = [image, text, scale, bias]
    found = [loss.detach(), *torch.autograd.grad(loss, leaves)]
    assert [it.dtype for it in found[1:]] == [dtype, dtype, torch.float32, torch.float32]
    exact = graded(dense, *(it.detach() for it in leaves), dtype=torch.float64)
    assert worst_error(found, exact) < (1e-3 if dtype == torch.float16 else 5e-3)


def test_products_of_bf16_numbers():
    image, text = pairs(300, 768)
    given = image, text, torch.tensor(SCALE), torch.tensor(BIAS)
    exact = graded(dense, *given, dtype=torch.float64)
    with ops.use_backend("reference"):
        found = graded(lambda *them: losses.siglip(*them, precision="bf16"), *given)
    assert 1e-5 < worst_error(found, exact) < 1e-2


@pytest.mark.usefixtures("backend")
def test_under_the_compiler():
    given = *pairs(6, 4), SCALE, BIAS
    compiled = torch.compile(losses.siglip, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(graded(compiled, *given), graded(losses.siglip, *given))


class TestModule:
    def test_calls_as_open_clip_makes_them(self):
        image, text = pairs(6, 4)
        loss = losses.SigLIPLoss()
        plain = losses.siglip(image, text, SCALE, BIAS)
        assert torch.equal(loss(image, text, SCALE, BIAS), plain)
        given = {"image_features": image, "text_features": text, "logit_scale": SCALE}
        assert loss(**given, logit_bias=BIAS, output_dict=True) == {"contrastive_loss": plain}

    def test_it_holds_the_precision(self):
        loss = losses.SigLIPLoss(precision="bf16")
        for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
            assert other.precision == "bf16"
        with pytest.raises(ValueError, match="precision must be one of float32, bf16; got 'int8'"):
            losses.SigLIPLoss(precision="int8")


def with_nan(rows, row):
    rows = rows.clone()
    rows[row, 1] = NAN
    return rows


IMAGE, TEXT = pairs(6, 4)
WRONG = {
    TypeError: {
        "image must be a tensor; got list": {"image": [[1.0]]},
        "text must be of floating point; got torch.int64": {"text": TEXT.long()},
        "text must be torch.float32, as image is": {"text": TEXT.double()},
        "scale must be a number; got str": {"scale": "10"},
        "scale must be of floating point; got torch.int64": {"scale": torch.tensor(3)},
    },
    ValueError: {
        r"image must have shape \[B, D\].*got \[4\]": {"image": IMAGE[0]},
        r"image must .* at least 1 row and 1 column; got \[0, 4\]": {"image": IMAGE[:0]},
        r"text must have shape \[6, 4\], a row for each image; got \[5, 4\]": {"text": TEXT[:5]},
        "text must be on cpu, as images are": {"text": TEXT.to("meta")},
        "image: row 3 holds a NaN": {"image": with_nan(IMAGE, 3)},
        "text: row 5 holds a NaN": {"text": with_nan(TEXT, 5)},
        r"scale must be one number; got shape \[2\]": {"scale": torch.ones(2)},
        "scale must be finite; got nan": {"scale": NAN},
        "^scale must be finite; got nan": {"scale": torch.tensor(NAN)},
        "bias must be finite; got inf": {"bias": torch.tensor(INF)},
        "bias": {"bias": torch.tensor(-INF)},
        "precision must be one of float32, bf16": {"precision": "fp8"},
    },
}


@each_of(WRONG)
@pytest.mark.usefixtures("backend")
def test_wrong_arguments_are_named(error, message, call):
    given = {"image": IMAGE, "text": TEXT, "scale": SCALE, "bias": BIAS} | call
    with pytest.raises(error, match=message) as caught:
        losses.siglip(**given)
    assert "\n" not in str(caught.value)


def test_queries_are_scaled_block_by_block():
    """Queries of 64 MiB have a gradient of 64 MiB, and no scaled copy."""
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(1 << 18, 64, generator=generator).requires_grad_()
    table = torch.randn(4, 64, generator=generator)
    own, scale = torch.arange(len(queries) + 1), torch.tensor(2.0, requires_grad=True)
    labels = own, own[:-1] % 4, 1.0, 0.0, "dot"
    with PeakMemory("cpu") as peak:
        ops.bce_total(queries, table, None, *labels, scale=scale).backward()
    assert peak.bytes < 1.8 * queries.nbytes
    queries.grad = None
    with torch.no_grad(), PeakMemory("cpu") as peak:
        ops.bce_total(queries, table, None, *labels, scale=scale)
    assert peak.bytes < 0.8 * queries.nbytes
