"""Values of classes that a program defines itself.

A task cannot import such a class, so a value of it is written together with its class: its methods are in the
state as they were when the value was written. A new version of the program would run the old methods, and
its own class would not be the class of the value. So a value that is read gets the class of the running
program that has the same module and name. If the program has none any more, or two of them, the value keeps
the class it was written with.

A class goes by its own name alone, because cloudpickle keeps no other: ``Outer.Row`` is a ``Row``.
"""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Iterable
from typing import Any

from pyspark.cloudpickle import cloudpickle

from tidemill.state.keys import decode_value

_PICKLER = cloudpickle.__name__
_MARK = b"_make_skeleton_"


class ProgramClasses:
    """The classes that a program defines itself. Every task that reads values carries them."""

    def __init__(self, classes: Iterable[type] = ()) -> None:
        named = [((each.__module__, each.__name__), each) for each in classes]
        counts = Counter(name for name, _ in named)
        self._by_name = {name: each for name, each in named if counts[name] == 1}

    def decode_value(self, data: bytes) -> Any:
        """Return the value that ``encode_value`` has written."""
        if self._by_name and _MARK in data:
            return _Unpickler(data, self._by_name).load()
        return decode_value(data)


class _Unpickler(pickle.Unpickler):
    """Reads what cloudpickle has written, and puts classes of the program in the place of those it reads."""

    def __init__(self, data: bytes, by_name: dict[tuple[str, str], type]) -> None:
        super().__init__(io.BytesIO(data))
        self._by_name = by_name

    def find_class(self, module: str, name: str) -> Any:
        if module == _PICKLER:
            match name:
                case "_make_skeleton_class":
                    return self._class
                case "_make_skeleton_enum":
                    return self._enum
                case "_class_setstate":
                    return self._define
        return super().find_class(module, name)

    def _class(
        self, metaclass: Any, name: str, bases: Any, kwargs: dict[str, Any], *rest: Any
    ) -> type:
        own = self._by_name.get((kwargs.get("__module__", ""), name))
        if own is not None:
            return own
        made: type = cloudpickle._make_skeleton_class(metaclass, name, bases, kwargs, *rest)  # type: ignore[no-untyped-call]
        return made

    def _enum(
        self, bases: Any, name: str, qualname: str, members: Any, module: str, *rest: Any
    ) -> type:
        own = self._by_name.get((module, name))
        if own is not None:
            return own
        made: type = cloudpickle._make_skeleton_enum(bases, name, qualname, members, module, *rest)  # type: ignore[no-untyped-call]
        return made

    def _define(self, made: type, state: Any) -> type:
        """Give a class its attributes, unless it is one of the program's, which has its own."""
        if self._by_name.get((made.__module__, made.__name__)) is not made:
            cloudpickle._class_setstate(made, state)  # type: ignore[no-untyped-call]
        return made
