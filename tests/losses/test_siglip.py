"""The sigmoid loss of image-text pairs against its equation."""

import pytest
import torch
from torch.nn.functional import logsigmoid

from kgfast.losses import SigLIPLoss, siglip


def pairs(count: int, dim: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    rows = torch.randn(2, count, dim, generator=generator, dtype=torch.float32)
    return torch.nn.functional.normalize(rows, dim=2).unbind()


@pytest.mark.parametrize("count", [1, 5, 300])
@pytest.mark.parametrize("bias", [None, -10.0])
def test_the_loss_and_all_gradients_are_those_of_the_equation(count, bias):
    results = []
    for dtype in (torch.float32, torch.float64):
        image, text = (it.to(dtype, copy=True).requires_grad_() for it in pairs(count))
        scale = torch.tensor(9.0, dtype=dtype, requires_grad=True)
        offset = None if bias is None else torch.tensor(bias, dtype=dtype, requires_grad=True)
        if dtype == torch.float32:
            loss = siglip(image, text, scale, offset)
        else:
            logits = scale * image @ text.T + (0.0 if offset is None else offset)
            signs = 2 * torch.eye(count, dtype=dtype) - 1
            loss = -logsigmoid(signs * logits).sum() / count
        loss.backward()
        leaves = [it for it in (image, text, scale, offset) if it is not None]
        results.append([loss.detach(), *(it.grad for it in leaves)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-6)


def test_the_module_is_called_as_open_clip_calls_its_own():
    image, text = pairs(4)
    loss = SigLIPLoss()(image, text, torch.tensor(10.0), torch.tensor(-10.0), output_dict=True)
    assert torch.equal(loss["contrastive_loss"], siglip(image, text, 10.0, -10.0))


@pytest.mark.parametrize(
    ("image", "text", "message"),
    [
        (torch.ones(3), torch.ones(3), "image must have shape"),
        (torch.ones(3, 2), torch.ones(2, 2), r"text must have shape \[3, 2\]"),
        (torch.ones(3, 2), torch.full((3, 2), torch.nan), "candidates: row 0"),
        (torch.full((3, 2), torch.inf), torch.ones(3, 2), "queries: row 0"),
    ],
)
def test_bad_input_is_named(image, text, message):
    with pytest.raises(ValueError, match=message):
        siglip(image, text, 1.0)
