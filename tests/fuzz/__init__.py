"""The attack: random calls, files, states and kills against oracles of their own.

``python -m fuzz`` with ``tests`` on the path; ``make fuzz`` and ``make sanitize`` call it.
"""
