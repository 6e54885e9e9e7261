"""The options of readers and writers: by any case, as in Spark, and checked for slips of the pen."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, MutableMapping

from tidemill.common.config import boolean, positive
from tidemill.common.suggestions import nearest
from tidemill.sql.query_errors import QueryArgumentError

logger = logging.getLogger(__name__)

BACKPRESSURE = "backpressure"
MAX_RATE = "maxRatePerSecond"
OF_EVERY_SOURCE = (BACKPRESSURE, MAX_RATE)
"""Options that Tidemill adds to every format; see :class:`tidemill.sql.reader.DataStreamReader`."""

NEAR = 0.85
"""How like another option an unknown one must be to be taken for a slip of the pen."""

_warned: set[tuple[str, str]] = set()


class Options(MutableMapping[str, str]):
    """Option values by name, whatever the case of the name. The last spelling is the one that shows.

    >>> options = Options({"maxFilesPerTrigger": "1"})
    >>> options["MAXFILESPERTRIGGER"], list(options)
    ('1', ['maxFilesPerTrigger'])
    """

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values: dict[str, tuple[str, str]] = {}
        for name, value in (values or {}).items():
            self[name] = value

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()][1]

    def __setitem__(self, name: str, value: str) -> None:
        self._values[name.lower()] = (name, value)

    def __delitem__(self, name: str) -> None:
        del self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._values.values())

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._values

    def __repr__(self) -> str:
        return f"Options({dict(self)})"

    def without(self, names: Iterable[str]) -> Options:
        left_out = {name.lower() for name in names}
        return Options({k: v for k, v in self.items() if k.lower() not in left_out})


def read_backpressure(options: Options, what: str) -> bool | None:
    """The option ``backpressure``: true, false, or None where the reader leaves it to the session."""
    return _read(options, BACKPRESSURE, what)


def read_max_rate(options: Options, what: str) -> float | None:
    """The option ``maxRatePerSecond``, a number above 0, or None."""
    text = options.get(MAX_RATE)
    if text is None:
        return None
    try:
        return positive(text.strip())
    except ValueError as error:
        raise QueryArgumentError(f"option {MAX_RATE} of {what} is {text!r}: {error}") from None


def _read(options: Options, name: str, what: str) -> bool | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        return boolean(text.strip())
    except ValueError as error:
        raise QueryArgumentError(f"option {name} of {what} is {text!r}: {error}") from None


def refuse_unknown(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """For a format all of whose options are known: any other one is an error."""
    names = sorted({*known, *OF_EVERY_SOURCE}, key=str.lower)
    for name in _unknown(given, names):
        near = nearest(name, names, 0.6)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(names)}"
        raise QueryArgumentError(f"{what} has no option {name}: {hint}")


def refuse_slips(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """For a file format, which may have options that nobody lists: an option that looks like a known one is
    an error, any other one a warning, once. Names with a dot are settings of Hadoop's.
    """
    names = [*known, *OF_EVERY_SOURCE]
    for name in _unknown(given, names):
        if "." in name:
            continue
        near = nearest(name, names, NEAR)
        if near:
            raise QueryArgumentError(f"{what} has no option {name}: did you mean {near}?")
        if (what, name.lower()) not in _warned:
            _warned.add((what, name.lower()))
            logger.warning("%s has no option %s that is known: it may have no effect", what, name)


def _unknown(given: Iterable[str], known: Iterable[str]) -> list[str]:
    lower = {name.lower() for name in known}
    return [name for name in given if name.lower() not in lower]
