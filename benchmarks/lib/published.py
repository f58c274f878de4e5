"""Published figures that pages show beside measured ones."""

# Safavi and Koutra 2020 (arXiv 2009.07810), CoDEx-M, test set: filtered metrics of link prediction,
# and triple classification against hard negatives. Keys are the values of model.name.
CODEX_M = {
    "transe": {"mrr": 0.303, "hits@1": 0.223, "hits@10": 0.454, "accuracy": 0.797, "f1": 0.803},
    "complex": {"mrr": 0.337, "hits@1": 0.262, "hits@10": 0.476, "accuracy": 0.824, "f1": 0.818},
    "conve": {"mrr": 0.318, "hits@1": 0.239, "hits@10": 0.464, "accuracy": 0.826, "f1": 0.829},
    "rescal": {"mrr": 0.317, "hits@1": 0.244, "hits@10": 0.456, "accuracy": 0.818, "f1": 0.815},
    "tucker": {"mrr": 0.328, "hits@1": 0.259, "hits@10": 0.458, "accuracy": 0.823, "f1": 0.816},
}
