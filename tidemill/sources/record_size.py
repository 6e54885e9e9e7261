"""The bytes of a record, for sources that know bytes and are limited in records."""

from __future__ import annotations


class RecordSize:
    """Estimates the bytes of a record, as a running mean.

    A batch counts half as much as the one after it, and a large batch more than a small one:

        bytes per record = (b1 + b2/2 + b3/4 + ...) / (r1 + r2/2 + r3/4 + ...)

    with the last batch first. Bytes are those on the disk, so compressed files have small records. Records
    are counted while a batch runs. Where outputs read only a part of their batch, too few are counted, both
    here and for the rate of the stream: the errors cancel, and the right number of bytes is admitted.

    One thread may call :meth:`learn` and another :meth:`bytes_of`.
    """

    def __init__(self, assumed_bytes: float = 1.0) -> None:
        """Assume ``assumed_bytes`` until the first batch. A line has at least one: its end."""
        self.bytes_per_record = assumed_bytes
        self._bytes = 0.0
        self._records = 0.0

    def learn(self, records: int, size: int) -> None:
        """Take note of a batch of ``size`` bytes that had so many records. Ignore an empty one."""
        if records < 1 or size < 1:
            return
        self._bytes = self._bytes / 2 + size
        self._records = self._records / 2 + records
        self.bytes_per_record = self._bytes / self._records

    @property
    def is_known(self) -> bool:
        """True once a batch has been learned from."""
        return self._records > 0

    def bytes_of(self, records: int) -> int:
        """Return about how many bytes so many records have."""
        return max(1, int(records * self.bytes_per_record))

    def differs_from(self, bytes_per_record: float) -> bool:
        """Return True if the size has changed by more than a tenth: worth writing down again."""
        return not 0.9 <= self.bytes_per_record / bytes_per_record <= 1.1
