"""A run on one page: ``kgfast report RUN``."""

from kgfast.extras.report.page import write_report

__all__ = ["write_report"]
