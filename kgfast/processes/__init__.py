"""Work of several processes in step: calls of ``kgfast.distributed``, and training.

:mod:`steps` holds the processes of one call, which wait for each other and raise each other's
errors. :mod:`shares` divides a ranking among them; :mod:`ranges` needs no processes in step.
:mod:`assignment` says how a run of training is divided, and :mod:`together` divides its steps.
"""
