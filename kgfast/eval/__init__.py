"""Ranking and prediction: ``rank()`` and ``topk()``, and what they return."""
