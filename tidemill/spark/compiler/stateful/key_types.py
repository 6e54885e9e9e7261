"""Which columns can be keys of the state: those whose equal values are equal bytes."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.errors import UnsupportedError
from tidemill.spark.compiler.catalyst import Catalyst, Node


def require_keys(catalyst: Catalyst, what: str, keys: Iterable[Node]) -> None:
    """Refuse keys whose equal values can differ in their bytes. ``what`` is the operation that has them."""
    row_utils = catalyst.module("org.apache.spark.sql.catalyst.util.UnsafeRowUtils")
    for key in keys:
        kind = key.dataType()
        if not row_utils.isBinaryStable(kind):
            raise UnsupportedError(
                f"{what} over a stream by {key.sql()}, which has a collation, is not supported: state is "
                "kept by the bytes of a text. Make equal texts the same first, such as with "
                "lower(collate(column, 'UTF8_BINARY'))."
            )
        if _has_map(catalyst, kind):
            raise UnsupportedError(
                f"{what} over a stream by {key.sql()}, which is a map or has one in it, is not supported: "
                "equal maps can have their entries in any order. Use "
                "array_sort(map_entries(column)) instead."
            )


def _has_map(catalyst: Catalyst, kind: Node) -> bool:
    match catalyst.name(kind):
        case "MapType":
            return True
        case "ArrayType":
            return _has_map(catalyst, kind.elementType())
        case "StructType":
            return any(_has_map(catalyst, field.dataType()) for field in kind.fields())
    return False
