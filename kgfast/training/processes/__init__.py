"""A run of several processes, which divide table and work.

:mod:`placement` is the protocol and the case of one process; :mod:`replicated` and :mod:`sharded`
place an entity table in several; :mod:`choice` chooses.
"""
