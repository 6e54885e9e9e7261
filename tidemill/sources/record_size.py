"""How many bytes a record has, for sources that know their bytes and are limited in records."""

from __future__ import annotations


class RecordSize:
    """A running mean of bytes per record.

    A batch counts for half as much as the one after it, and one with more bytes for more:

        bytes per record = (b1 + b2/2 + b3/4 + ...) / (r1 + r2/2 + r3/4 + ...)

    with the last batch first. Bytes are those on the disk, so that compressed files have small records.
    Records are those that were counted while a batch ran. Where outputs read only a part of their batch,
    too few are counted, here and for the rate of the stream alike: the errors cancel, and the bytes
    that are let through are right.

    One thread may call :meth:`learn` and another :meth:`bytes_of`.
    """

    def __init__(self, assumed_bytes: float = 1.0) -> None:
        """``assumed_bytes`` holds until something is known. A line has at least one: the end of it."""
        self.bytes_per_record = assumed_bytes
        self._bytes = 0.0
        self._records = 0.0

    def learn(self, records: int, size: int) -> None:
        """A batch of ``size`` bytes turned out to have so many records. One without any says nothing."""
        if records < 1 or size < 1:
            return
        self._bytes = self._bytes / 2 + size
        self._records = self._records / 2 + records
        self.bytes_per_record = self._bytes / self._records

    @property
    def is_known(self) -> bool:
        """False while nothing has been learned."""
        return self._records > 0

    def bytes_of(self, records: int) -> int:
        return max(1, int(records * self.bytes_per_record))

    def differs_from(self, bytes_per_record: float) -> bool:
        """True if that is another size by more than a tenth: worth to be written down again."""
        return not 0.9 <= self.bytes_per_record / bytes_per_record <= 1.1
