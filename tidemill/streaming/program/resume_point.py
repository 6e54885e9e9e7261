"""Where a recovered or upgraded stream goes on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ResumePoint:
    """The times of a stream that goes on; its batches and their ranges are in the batch log."""

    zero_ms: int
    # False if the program has another batch interval now. Its times then begin anew, after the last batch.
    same_times: bool = True
