"""A run on one page: ``kgfast report RUN``."""

from kgfast.report.page import write_report

__all__ = ["write_report"]
