"""Shared code of tests: oracles, problems, small models and runs, and paths."""
