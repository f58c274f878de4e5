"""Paths in a star of arms, learned by a small GPT whose vocabulary has ten million tokens."""
