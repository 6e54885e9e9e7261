"""The options of a reader, as a source reads them: by any case, with errors that name the option."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from tidemill.errors import OptionError

T = TypeVar("T")


class SourceOptions(Mapping[str, str]):
    """Options by name. Spark does not care about the case of a name, and so nobody does.

    ``what`` is whose options they are, for messages: ``the rate source``.
    """

    def __init__(self, options: Mapping[str, str], what: str = "the source") -> None:
        self._values = {str(name).lower(): str(value) for name, value in options.items()}
        self._what = what

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def read(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """What ``parse`` makes of an option, or the default. ``parse`` says what it expected, in a
        ``ValueError``.
        """
        text = self.get(name)
        if text is None:
            return default
        try:
            return parse(text.strip())
        except ValueError as error:
            raise OptionError(f"option {name} of {self._what} is {text!r}: {error}") from None

    def required(self, name: str, parse: Callable[[str], T], example: str) -> T:
        """As :meth:`read`, of an option that has to be there."""
        if name not in self:
            raise OptionError(f'{self._what} needs the option {name}: .option("{name}", {example})')
        value = self.read(name, parse, None)
        assert value is not None
        return value


def non_negative_int(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError("expected a whole number of at least 0")
    return int(text)


def non_empty(text: str) -> str:
    if not text:
        raise ValueError("expected a text that is not empty")
    return text
