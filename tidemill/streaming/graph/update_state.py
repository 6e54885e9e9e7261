"""``updateStateByKey``: a function that is called for every key in every batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidemill.spark.rdds.combine import combine_by_key
from tidemill.state.keys import decode_key, encode_key, encode_value
from tidemill.streaming.graph.state import StateFunction
from tidemill.tasks.combine_step import LISTS

if TYPE_CHECKING:
    from pyspark import RDD

    from tidemill.state.partition_state import StateTransaction


class UpdateState(StateFunction):
    """Gives each key the state that ``update(new values, state or None)`` returns; None ends the state."""

    keeps_keys = True

    def __init__(self, update: Callable[[Any, Any], Any]) -> None:
        self._update = update

    def exchange(
        self, rdd: RDD[Any], num_partitions: int, partition_func: Callable[[Any], int]
    ) -> RDD[Any]:
        return combine_by_key(rdd, LISTS, num_partitions, partition_func)

    def run(
        self,
        state: StateTransaction,
        records: Iterable[Any],
        time_ms: int,
        decode_value: Callable[[bytes], Any],
    ) -> Iterator[tuple[Any, Any]]:
        arrived: dict[bytes, tuple[Any, list[Any]]] = {}
        for key, values in records:
            encoded = encode_key(key)
            if encoded in arrived:  # keys that differ in Python and have the same encoding
                arrived[encoded][1].extend(values)
            else:
                arrived[encoded] = (key, values)
        update = self._update
        for record in state.scan():
            encoded, before, _ = record
            assert before is not None
            new = arrived.pop(encoded, None)
            key, values = (decode_key(encoded), []) if new is None else new
            after = update(values, decode_value(before))
            if after is None:
                state.remove(encoded, time_ms)
                continue
            # A state that has not changed need not be written.
            if (data := encode_value(after)) != before:
                state.put(encoded, data, time_ms)
            yield key, after
        for encoded, (key, values) in arrived.items():
            after = update(values, None)
            if after is not None:
                state.put(encoded, encode_value(after), time_ms)
                yield key, after
