"""``mapWithState``: a function of the keys that have records, and of those that time out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from tidemill.common.times import to_datetime
from tidemill.spark.rdds.combine import place_by_key
from tidemill.state.keys import decode_key, decode_value, encode_key, encode_value
from tidemill.streaming.graph.stateful_node import StateFunction
from tidemill.streaming.state_spec import _NOTHING, State
from tidemill.streaming.util import positional_arguments

if TYPE_CHECKING:
    from pyspark import RDD

    from tidemill.state.partition_state import StateTransaction
    from tidemill.state.state_file import Record

RECORDS_AT_ONCE = 20_000
"""So many records are looked up together: sorted look-ups are the fast ones."""


class _Touched:
    """A key that has had records in this batch."""

    __slots__ = ("before", "changed", "value")

    def __init__(self, before: Record | None) -> None:
        self.before = before
        self.value: Any = _NOTHING if before is None else decode_value(before.value or b"")
        self.changed = False


class MapWithState(StateFunction):
    """Costs as much as there are records and keys that time out, however many keys there are."""

    def __init__(self, function: Callable[..., Any], timeout_ms: int | None) -> None:
        self._function = function
        self._wants_time = positional_arguments(function) == 4
        self._timeout_ms = timeout_ms
        self.timed = timeout_ms is not None

    def exchange(
        self, rdd: RDD[Any], num_partitions: int, partition_func: Callable[[Any], int]
    ) -> RDD[Any]:
        return place_by_key(rdd, num_partitions, partition_func)

    def has_work(self, rdd: RDD[Any]) -> bool:
        return self.timed or rdd.getNumPartitions() > 0

    def run(self, state: StateTransaction, records: Iterable[Any], time_ms: int) -> Iterator[Any]:
        function = self._function
        if self._wants_time:
            time, four = to_datetime(time_ms), function

            def function(key: Any, value: Any, of_key: State[Any]) -> Any:
                return four(time, key, value, of_key)

        touched: dict[bytes, _Touched] = {}
        of_key: State[Any] = State()
        for key, value, entry in self._look_up(state, records, touched):
            of_key._load(entry.value, False)
            mapped = function(key, value, of_key)
            entry.value = of_key._value
            entry.changed |= of_key._updated or of_key._removed
            if mapped is not None:
                yield mapped
        self._write(state, touched, time_ms)
        if self._timeout_ms is not None:
            for record in state.expired(time_ms - self._timeout_ms):
                if record.key in touched:
                    continue
                of_key._load(decode_value(record.value or b""), True)
                mapped = function(decode_key(record.key), None, of_key)
                state.remove(record.key, time_ms)
                if mapped is not None:
                    yield mapped

    @staticmethod
    def _look_up(
        state: StateTransaction, records: Iterable[Any], touched: dict[bytes, _Touched]
    ) -> Iterator[tuple[Any, Any, _Touched]]:
        """Every record with the state of its key, in the order of the records."""
        records = iter(records)
        for first in records:
            some = [
                (encode_key(key), key, value)
                for key, value in chain((first,), islice(records, RECORDS_AT_ONCE - 1))
            ]
            missing = {encoded for encoded, _, _ in some if encoded not in touched}
            found = state.get_many(missing)
            touched.update((encoded, _Touched(found.get(encoded))) for encoded in missing)
            for encoded, key, value in some:
                yield key, value, touched[encoded]

    def _write(self, state: StateTransaction, touched: dict[bytes, _Touched], time_ms: int) -> None:
        for encoded, entry in touched.items():
            if entry.value is _NOTHING:
                if entry.before is not None:
                    state.remove(encoded, time_ms)
            elif entry.changed:
                state.put(encoded, encode_value(entry.value), time_ms)
            elif self.timed and entry.before is not None and entry.before.value is not None:
                state.put(encoded, entry.before.value, time_ms)  # it was touched: it lives on
