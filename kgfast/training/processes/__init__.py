"""A run of several processes: how they divide its table and its work.

:mod:`placement` is the protocol and the case of one process; :mod:`replicated` and :mod:`sharded`
place an entity table in several; :mod:`choice` chooses.
"""
