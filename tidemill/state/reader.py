"""Reading the state of a stream from another process, without Spark, whether the stream runs or not.

::

    from tidemill.state.reader import read_state

    state = read_state("checkpoints/orders", "totals")
    print(state.batch_id, state.values["customer-7"])
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

from tidemill.checkpoint.batch_log import CommitRecord
from tidemill.checkpoint.program_file import read_header
from tidemill.checkpoint.storage import Storage, open_storage
from tidemill.errors import CheckpointError, DamagedCheckpointError
from tidemill.state.keys import decode_key, decode_value
from tidemill.state.local_store import scratch_store
from tidemill.state.operators import Versions, read_initial
from tidemill.state.partition_files import INITIAL, PartitionFiles

ATTEMPTS = 5


@dataclass(frozen=True)
class CommittedState:
    """All keys and values of an operator after a batch. ``batch_id`` is -1 before the first batch."""

    batch_id: int
    values: dict[Any, Any]


def read_state(directory: str, name: str) -> CommittedState:
    """Return the state of a stream's operator as of the last committed batch.

    This takes no lock: the stream may continue and delete files before they are read. Then it has committed
    a later batch, and this reads the state of that one.
    """
    storage = open_storage(directory)
    operator = _operator_id(storage, name)
    batch_id = _last_committed(storage)
    for _ in range(ATTEMPTS):
        try:
            return CommittedState(
                batch_id, _read(storage, operator, _versions(storage, operator, batch_id))
            )
        except (DamagedCheckpointError, FileNotFoundError):
            later = _last_committed(storage)
            if later == batch_id:
                raise
            batch_id = later
    raise CheckpointError(
        f"the stream in {directory} commits batches faster than its state can be read: use "
        "StreamingContext.readState, which reads it inside the stream",
        directory,
    )


def _operator_id(storage: Storage, name: str) -> str:
    header = read_header(storage)
    if header is None:
        raise CheckpointError(
            f"{storage.uri} does not hold the checkpoint of a stream", storage.uri
        )
    with_state = {o.name: o.id for o in header.operators if o.partitions is not None}
    if name not in with_state:
        raise CheckpointError(
            f"the stream in {storage.uri} has no state called {name!r}; it has "
            f"{', '.join(sorted(with_state)) or 'none'}",
            storage.uri,
        )
    return with_state[name]


def _last_committed(storage: Storage) -> int:
    return max((int(n) for n in storage.list("commits") if n.isdigit()), default=INITIAL)


def _versions(storage: Storage, operator: str, batch_id: int) -> Versions:
    if batch_id != INITIAL:
        record = _commit(storage, f"commits/{batch_id}")
        if operator in record.state:
            return record.state[operator]
    return read_initial(storage, operator) or ()


def _commit(storage: Storage, file: str) -> CommitRecord:
    try:
        return CommitRecord.parse(storage.read(file).decode())
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedCheckpointError(
            storage.full_name(file),
            f"cannot be read ({error})",
            "Restore it from a backup of the checkpoint directory.",
            storage.uri,
        ) from None


def _read(storage: Storage, operator: str, versions: Versions) -> dict[Any, Any]:
    values: dict[Any, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tidemill-state-") as folder:
        for partition, version in enumerate(versions):
            with scratch_store(folder, timed=False) as store:
                store.catch_up(PartitionFiles(storage, operator, partition), version)
                with store.reading() as reader:
                    values.update(
                        (decode_key(record.key), decode_value(record.value or b""))
                        for record in reader.scan()
                    )
    return values
