"""``mapWithState``: a function that is called for keys that have records, and for keys that time out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from tidemill.common.times import to_datetime
from tidemill.spark.rdds.combine import place_by_key
from tidemill.state.keys import decode_key, encode_key, encode_value
from tidemill.streaming.graph.state import StateFunction
from tidemill.streaming.state_spec import NO_STATE, State
from tidemill.streaming.util import positional_arguments

if TYPE_CHECKING:
    from pyspark import RDD

    from tidemill.state.partition_state import StateTransaction
    from tidemill.state.state_file import Record

RECORDS_AT_ONCE = 20_000
"""The number of records that are looked up together: look-ups in sorted order are the fast ones."""


class _Touched:
    """The state of a key that has had records in this batch."""

    __slots__ = ("before", "changed", "value")

    def __init__(self, before: Record | None, decode_value: Callable[[bytes], Any]) -> None:
        self.before = before
        self.value: Any = NO_STATE if before is None else decode_value(before.value or b"")
        self.changed = False


class MapWithState(StateFunction):
    """Costs as much as there are records and keys that time out, however many keys there are."""

    def __init__(self, function: Callable[..., Any], timeout_ms: int | None) -> None:
        self._function = function
        self._wants_time = positional_arguments(function) == 4
        self._timeout_ms = timeout_ms
        self.timed = self.runs_without_records = timeout_ms is not None

    def exchange(
        self, rdd: RDD[Any], num_partitions: int, partition_func: Callable[[Any], int]
    ) -> RDD[Any]:
        return place_by_key(rdd, num_partitions, partition_func)

    def run(
        self,
        state: StateTransaction,
        records: Iterable[Any],
        time_ms: int,
        decode_value: Callable[[bytes], Any],
    ) -> Iterator[Any]:
        function = self._function
        if self._wants_time:
            time, with_time = to_datetime(time_ms), function

            def function(key: Any, value: Any, key_state: State[Any]) -> Any:
                return with_time(time, key, value, key_state)

        touched: dict[bytes, _Touched] = {}
        key_state: State[Any] = State()
        for key, value, entry in self._look_up(state, records, touched, decode_value):
            key_state._load(entry.value, False)
            mapped = function(key, value, key_state)
            entry.value = key_state._value
            entry.changed |= key_state._updated or key_state._removed
            if mapped is not None:
                yield mapped
        self._write(state, touched, time_ms)
        if self._timeout_ms is not None:
            for record in state.expired(time_ms - self._timeout_ms):
                if record.key in touched:
                    continue
                key_state._load(decode_value(record.value or b""), True)
                mapped = function(decode_key(record.key), None, key_state)
                state.remove(record.key, time_ms)
                if mapped is not None:
                    yield mapped

    @staticmethod
    def _look_up(
        state: StateTransaction,
        records: Iterable[Any],
        touched: dict[bytes, _Touched],
        decode_value: Callable[[bytes], Any],
    ) -> Iterator[tuple[Any, Any, _Touched]]:
        """Yield every record with the state of its key, in the order of the records."""
        records = iter(records)
        for first in records:
            some = [
                (encode_key(key), key, value)
                for key, value in chain((first,), islice(records, RECORDS_AT_ONCE - 1))
            ]
            missing = {encoded for encoded, _, _ in some if encoded not in touched}
            found = state.get_many(missing)
            for encoded in missing:
                touched[encoded] = _Touched(found.get(encoded), decode_value)
            for encoded, key, value in some:
                yield key, value, touched[encoded]

    def _write(self, state: StateTransaction, touched: dict[bytes, _Touched], time_ms: int) -> None:
        for encoded, entry in touched.items():
            if entry.value is NO_STATE:
                if entry.before is not None:
                    state.remove(encoded, time_ms)
            elif entry.changed:
                state.put(encoded, encode_value(entry.value), time_ms)
            elif self.timed and entry.before is not None and entry.before.value is not None:
                # A record came, so the timeout begins anew.
                state.put(encoded, entry.before.value, time_ms)
