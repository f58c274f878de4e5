"""A run of several processes: what each works on, holds, sends, saves and checks.

:mod:`placement` says what a run asks of it, and what one process does; :mod:`replicated` and
:mod:`sharded` are the two ways to place an entity table in several; :mod:`launch` chooses.
"""
