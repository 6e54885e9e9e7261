"""The name of a table of a database, as a user writes it and as SQL quotes it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".\s][^".]*)')


@dataclass(frozen=True)
class TableName:
    """``table`` or ``schema.table``. Quotes around a part keep its dots and its upper case.

    >>> TableName.parse('shop.orders'), TableName.parse('"my.table"').quoted
    (TableName(table='orders', schema='shop'), '"my.table"')
    """

    table: str
    schema: str | None = None

    @classmethod
    def parse(cls, text: str) -> TableName:
        parts: list[str] = []
        at = 0
        while match := _PART.match(text, at):
            parts.append((match[1] or match[2]).replace('""', '"').strip())
            at = match.end()
            if text[at : at + 1] != ".":
                break
            at += 1
        if at != len(text) or not 1 <= len(parts) <= 2:
            raise ValueError(
                "expected the name of a table, or of a schema and a table: shop.orders"
            )
        return cls(parts[-1], parts[0] if len(parts) == 2 else None)

    @property
    def quoted(self) -> str:
        return quoted(self.table) if self.schema is None else self.sibling(self.table)

    def sibling(self, table: str) -> str:
        """Return the quoted name of another table in the same schema."""
        return ".".join(quoted(part) for part in (self.schema, table) if part is not None)

    def __str__(self) -> str:
        return self.table if self.schema is None else f"{self.schema}.{self.table}"


def quoted(name: str) -> str:
    """Return a name as SQL has it, whatever characters are in it.

    >>> quoted("an order")
    '"an order"'
    """
    return '"' + name.replace('"', '""') + '"'
