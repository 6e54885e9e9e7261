"""The options of sources, sinks, readers and writers: names in any case, errors that name the option."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar

from tidemill.common.suggestions import did_you_mean, nearest
from tidemill.errors import OptionError

logger = logging.getLogger(__name__)

T = TypeVar("T")

SLIP = 0.85
"""How similar an unknown option must be to a known one to be refused as a slip of the pen."""

_warned: set[tuple[str, str]] = set()


class Options(MutableMapping[str, str]):
    """Option values by name. As in Spark, the case of a name does not matter; the last spelling shows.

    ``owner`` says in messages whose options they are. ``error`` is the type of what is raised: by default
    that of the options in ``values``, so that a reader's options raise the reader's type everywhere.

    >>> options = Options({"maxFilesPerTrigger": 1})
    >>> options["MAXFILESPERTRIGGER"], list(options)
    ('1', ['maxFilesPerTrigger'])
    >>> Options({"host": ""}, "the socket source").read("host", non_empty, "localhost")
    Traceback (most recent call last):
    tidemill.errors.OptionError: option host of the socket source is '': expected a text that is not empty
    """

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        owner: str = "the source",
        error: type[OptionError] | None = None,
    ) -> None:
        self._values: dict[str, tuple[str, str]] = {}
        self._owner = owner
        inherited: type[OptionError] = getattr(values, "_error", OptionError)
        self._error = error or inherited
        for name, value in (values or {}).items():
            self[str(name)] = str(value)

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
        """Return a copy that lacks these options."""
        left_out = {name.lower() for name in names}
        kept = {name: value for name, value in self.items() if name.lower() not in left_out}
        return Options(kept, self._owner, self._error)

    def read(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """Return what ``parse`` makes of an option's text, or the default if the option is not set.

        ``parse`` raises a ``ValueError`` that says what it expected.
        """
        text = self.get(name)
        if text is None:
            return default
        try:
            return parse(text.strip())
        except ValueError as error:
            message = f"option {name} of {self._owner} is {text!r}: {error}"
            raise self._error(message, name) from None

    def required(self, name: str, parse: Callable[[str], T], example: str) -> T:
        """Return what ``parse`` makes of an option's text. Raise if the option is not set."""
        if name not in self:
            message = f'{self._owner} needs the option {name}: .option("{name}", {example})'
            raise self._error(message, name)
        value = self.read(name, parse, None)
        assert value is not None
        return value

    def unknown(self, known: Iterable[str]) -> list[str]:
        """Return the names of the options that are not among ``known``."""
        lower_case = {name.lower() for name in known}
        return [name for name in self if name.lower() not in lower_case]

    def refuse_unknown(self, known: Iterable[str], settings_allowed: bool = False) -> None:
        """Raise for an option that is not among ``known``, with the near name or all that there are.

        With ``settings_allowed`` a name with a dot passes: it is a setting of Hadoop or of a library.
        """
        names = sorted(set(known), key=str.lower)
        for name in self.unknown(names):
            if settings_allowed and "." in name:
                continue
            hint = did_you_mean(name, names) or f" There are {', '.join(names)}."
            raise self._error(f"{self._owner} has no option {name}.{hint}", name)

    def refuse_slips(self, known: Iterable[str]) -> None:
        """Raise for an unknown option that looks like a known one, and warn once of any other.

        For formats that may have options nobody lists. A name with a dot is a setting of Hadoop's.
        """
        names = list(known)
        for name in self.unknown(names):
            if "." in name:
                continue
            if nearest(name, names, SLIP):
                hint = did_you_mean(name, names)
                raise self._error(f"{self._owner} has no option {name}.{hint}", name)
            if (self._owner, name.lower()) not in _warned:
                _warned.add((self._owner, name.lower()))
                logger.warning(
                    "%s has no option %s that is known: it may have no effect", self._owner, name
                )


def non_negative_int(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError("expected a whole number of at least 0")
    return int(text)


def non_empty(text: str) -> str:
    if not text:
        raise ValueError("expected a text that is not empty")
    return text
