"""Influences by autograd, an example at a time."""

import torch
from torch.nn import functional

from kgfast.losses import smoothed_labels


def loss_of_scores(scores, positives, loss):
    """Compute the loss of a row of scores over all entities."""
    count = len(scores)
    if loss.name == "cross_entropy":
        return functional.cross_entropy(
            scores[None], positives, label_smoothing=loss.label_smoothing
        )
    a, c = smoothed_labels(loss.label_smoothing, loss.smoothing_style, count)
    labels = torch.full_like(scores, c)
    labels[positives] += a
    return functional.binary_cross_entropy_with_logits(scores, labels)


def dense_gradient(model, side, anchor, relation, positives, loss):
    """Return the gradient of the entity table as candidates, and of the biases."""
    model = model.requires_grad_(True)
    query = model.queries(anchor[None], relation[None], side)[0].detach()
    candidates = model.candidates(side)
    table, bias = candidates.table.detach().clone().requires_grad_(), candidates.bias
    bias = None if bias is None else bias.detach().clone().requires_grad_()
    leaves = [table] if bias is None else [table, bias]
    scores = table.to(query.dtype) @ query
    scores = scores if bias is None else scores + bias
    return flat(loss_of_scores(scores, positives, loss), leaves)


def assert_close(found, expected, tolerance=1e-4):
    """Values agree but for a share of the largest."""
    expected = expected.detach()
    assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())


def flat(loss, leaves):
    gradients = torch.autograd.grad(loss, leaves)
    return torch.cat([gradient.to_dense().flatten().double() for gradient in gradients])


def examples_of(hrt, mode="1vsall"):
    """List side, anchor, relation and answers of each example, in the order of their ids."""
    found = []
    for side, of in (("tail", (0, 1, 2)), ("head", (2, 1, 0))):
        columns = hrt[:, list(of)]
        if mode == "1vsall":
            found += [(side, a, r, t[None]) for a, r, t in columns]
            continue
        for a, r in columns[:, :2].unique(dim=0):
            own = (columns[:, 0] == a) & (columns[:, 1] == r)
            found.append((side, a, r, columns[own, 2].unique()))
    return found


def dense_influences(model, train, test, loss, mode="1vsall", side="tail"):
    """Compute influences ``[M, T]`` at a rate of 1, float64."""
    examples = [dense_gradient(model, *example, loss) for example in examples_of(train, mode)]
    count = len(test)
    both = examples_of(test)
    others = both[:count] if side == "tail" else both[count:]
    tests = [dense_gradient(model, *example, loss) for example in others]
    model.requires_grad_(False)
    return torch.stack(tests) @ torch.stack(examples).T
