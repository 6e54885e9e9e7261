"""The arguments of ``mapWithState``: its function, the state that it sees, and how state is kept."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from pyspark import RDD

from tidemill.common.times import duration_ms
from tidemill.errors import IllegalStateError, OptionError
from tidemill.state.keys import stable_hash
from tidemill.streaming.util import positional_arguments, require_partitions

__all__ = ["State", "StateSpec"]

T = TypeVar("T")
NO_STATE: Any = object()
"""The value of a :class:`State` whose key has none."""


class State(Generic[T]):
    """The state of one key, as the function of a ``mapWithState`` sees it. A program never makes one.

    The next record of the key sees a new value, and so does the next batch once this one is
    committed. A value that is changed in place must be put back with :meth:`update`.
    """

    def __init__(self) -> None:
        self._load(NO_STATE, False)

    def _load(self, value: Any, timing_out: bool) -> None:
        self._value = value
        self._timing_out = timing_out
        self._updated = False
        self._removed = False

    def exists(self) -> bool:
        """Return True if the key has a state."""
        return self._value is not NO_STATE

    def get(self) -> T:
        """Return the state, which must exist."""
        if self._value is NO_STATE:
            raise IllegalStateError("this key has no state: ask exists() before get()")
        return self._value  # type: ignore[no-any-return]

    def getOption(self) -> T | None:
        """Return the state, or None if there is none."""
        return None if self._value is NO_STATE else self._value

    def update(self, newState: T) -> None:
        """Give the key another state."""
        self._refuse_change("updated")
        if newState is None:
            raise OptionError("a state cannot be None: call remove() to end it", "newState")
        self._value = newState
        self._updated = True

    def remove(self) -> None:
        """End the state of the key."""
        self._refuse_change("removed")
        self._value = NO_STATE
        self._removed = True

    def isTimingOut(self) -> bool:
        """Return True if the function is called because the key has been idle for the timeout.

        The state ends after this call, and cannot be changed in it.
        """
        return self._timing_out

    def _refuse_change(self, what: str) -> None:
        if self._removed:
            raise IllegalStateError(f"a state that has been removed cannot be {what}")
        if self._timing_out:
            raise IllegalStateError(f"a state that is timing out cannot be {what}")

    def __repr__(self) -> str:
        return f"State({self.getOption()!r})"


class StateSpec:
    """The settings of a ``mapWithState``: made by :meth:`function`, refined by the other methods.

    ::

        def count(word, one, state):
            total = state.getOption() or 0
            if not state.isTimingOut():
                total += one
                state.update(total)
            return word, total

        counts = pairs.mapWithState(StateSpec.function(count).timeout(60).numPartitions(4))

    The function is called with ``(key, value, state)``, or with ``(time, key, value, state)`` if it has
    four parameters; ``value`` is None for a key that times out. Its result becomes a record of the
    new stream, unless it is None.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._initial: RDD[Any] | Iterable[Any] | None = None
        self._num_partitions: int | None = None
        self._partition_func: Callable[[Any], int] = stable_hash
        self._timeout_ms: int | None = None

    @staticmethod
    def function(mappingFunction: Callable[..., Any]) -> StateSpec:
        """Begin the settings with the function of each pair and the state of its key."""
        if not callable(mappingFunction) or positional_arguments(mappingFunction) not in (3, 4):
            raise OptionError(
                "StateSpec.function needs a function of (key, value, state), or of "
                f"(time, key, value, state), not {getattr(mappingFunction, '__name__', mappingFunction)!r}",
                "mappingFunction",
            )
        return StateSpec(mappingFunction)

    def initialState(self, pairs: RDD[Any] | Iterable[Any]) -> StateSpec:
        """Begin with these pairs of key and state: an RDD, or a list."""
        return self._with(_initial=pairs)

    def numPartitions(self, number: int) -> StateSpec:
        """Keep the state in ``number`` partitions, for the whole life of the stream."""
        return self._with(_num_partitions=require_partitions(number))

    def partitioner(self, partitionFunc: Callable[[Any], int]) -> StateSpec:
        """Place keys by a function of your own, which must stay the same for the life of the stream."""
        if not callable(partitionFunc):
            raise OptionError(
                f"partitioner needs a function of a key, not {partitionFunc!r}", "partitionFunc"
            )
        return self._with(_partition_func=partitionFunc)

    def timeout(self, idleDuration: float) -> StateSpec:
        """End the state of a key that has had no record for ``idleDuration`` seconds."""
        return self._with(_timeout_ms=duration_ms(idleDuration, "idleDuration"))

    def _with(self, **changes: Any) -> StateSpec:
        changed = copy.copy(self)
        changed.__dict__.update(changes)
        return changed
