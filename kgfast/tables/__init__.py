"""Tables of rows that may be larger than memory: in files, in shards, or in this process."""

from kgfast.tables.opening import open_table as open
from kgfast.tables.protocol import Rows, Table, as_rows, is_table
from kgfast.tables.shard import Shard, Shards
from kgfast.tables.views import UnitRows

__all__ = ["Rows", "Shard", "Shards", "Table", "UnitRows", "as_rows", "is_table", "open"]
