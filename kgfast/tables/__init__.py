"""Tables of rows that may be larger than memory: in files, in shards, or in this process alone."""

from kgfast.tables.protocol import Table, WritableTable, is_table
from kgfast.tables.shard import Shard

__all__ = ["Shard", "Table", "WritableTable", "is_table"]
