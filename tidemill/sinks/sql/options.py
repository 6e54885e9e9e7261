"""The options of the SQL sink."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tidemill.common.config import boolean
from tidemill.common.options import Options, non_empty, non_negative_int
from tidemill.errors import OptionError
from tidemill.sinks.sql.table_name import TableName

OWNER = "the sql sink"
SQLITE, POSTGRESQL = "sqlite", "postgresql"
NAMES = (
    *("url", "dbtable", "user", "password", "passwordEnv", "passwordFile"),
    *("keys", "deletes", "createTable", "addColumns", "retrySeconds"),
)
_SCHEMES = {"sqlite": SQLITE, "postgresql": POSTGRESQL, "postgres": POSTGRESQL}
_PASSWORDS = ("password", "passwordEnv", "passwordFile")
_IN_URL = re.compile(r"//[^/@]*@")


@dataclass(frozen=True)
class SqlSinkOptions:
    """What a writer says about a table. ``url`` and ``password`` may be secret: neither is printed."""

    kind: str
    url: str = field(repr=False)
    place: str
    """The address without user and password."""
    table: TableName
    user: str | None
    password: str | None = field(repr=False)
    keys: tuple[str, ...]
    deletes: str | None
    create_table: bool
    add_columns: bool
    retry_s: int

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> SqlSinkOptions:
        options = Options(values, OWNER)
        options.refuse_unknown(NAMES)
        url = options.required("url", non_empty, "'sqlite:///orders.db'")
        kind = _kind(url)
        keys: tuple[str, ...] = options.read("keys", _names, ())
        deletes = options.read("deletes", non_empty, None)
        if deletes is not None and not keys:
            raise OptionError(
                f"option deletes of {OWNER} needs the option keys: they say which row to delete",
                "deletes",
            )
        if deletes in keys:
            raise OptionError(f"the column {deletes} cannot be both in keys and deletes", "deletes")
        return cls(
            kind,
            url,
            _IN_URL.sub("//", url.partition("?")[0]),
            options.required("dbtable", TableName.parse, "'orders'"),
            options.read("user", non_empty, None),
            _password(options),
            keys,
            deletes,
            options.read("createTable", boolean, True),
            options.read("addColumns", boolean, False),
            options.read("retrySeconds", non_negative_int, 60),
        )


def _kind(url: str) -> str:
    if url.startswith("jdbc:"):
        raise OptionError(
            f"option url of {OWNER} is an address of JDBC: leave out 'jdbc:', and write user and password "
            "as options of their own",
            "url",
        )
    scheme = urlsplit(url).scheme
    if scheme not in _SCHEMES:
        raise OptionError(
            f"option url of {OWNER} begins with {scheme or url.partition(':')[0]!r}: there are "
            "sqlite:///path/to/file and postgresql://host:port/database",
            "url",
        )
    return _SCHEMES[scheme]


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("expected names of columns, with commas, each once")
    return names


def _password(options: Options) -> str | None:
    """Return the password, from wherever the options say that it is."""
    ways = [name for name in _PASSWORDS if name in options]
    if len(ways) > 1:
        raise OptionError(
            f"{OWNER} has two passwords, in {' and '.join(ways)}: leave out one", ways[1]
        )
    if "passwordEnv" in options:
        value = os.environ.get(options["passwordEnv"])
        if not value:
            raise OptionError(
                f"the environment variable {options['passwordEnv']}, which option passwordEnv of {OWNER} "
                "names, is not set",
                "passwordEnv",
            )
        return value
    if "passwordFile" in options:
        try:
            with open(options["passwordFile"], encoding="utf-8") as file:
                return file.read().strip()
        except OSError as error:
            raise OptionError(
                f"the file of option passwordFile of {OWNER} cannot be read: {error}",
                "passwordFile",
            ) from None
    return options.get("password")
