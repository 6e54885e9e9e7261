"""The files that a stream has taken already, without remembering all of them for ever."""

from __future__ import annotations

NO_AGE_LIMIT = 1 << 62


class SeenFiles:
    """Remembers the files of the last ``max_age_ms``, counted back from the newest file that was seen.

    An older file is never new, so nothing about it needs to be remembered. The machine's clock plays no part:
    input that is read again after a year has the same files as today.

    With ``name_only`` a file is known by the last part of its path, in whatever directory.
    """

    def __init__(self, max_age_ms: int = NO_AGE_LIMIT, name_only: bool = False) -> None:
        self._max_age_ms = max_age_ms
        self._name_only = name_only
        self._times: dict[str, int] = {}
        self._newest_ms = 0
        self._oldest_ms = -NO_AGE_LIMIT

    def _key(self, uri: str) -> str:
        return uri.rsplit("/", 1)[-1] if self._name_only else uri

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, uri: str) -> bool:
        """Return True if the file is remembered: it is not new, whatever its modification time is now."""
        return self._key(uri) in self._times

    def add(self, uri: str, modified_ms: int) -> None:
        self._times[self._key(uri)] = modified_ms
        self._newest_ms = max(self._newest_ms, modified_ms)

    def is_new(self, uri: str, modified_ms: int) -> bool:
        return modified_ms >= self._oldest_ms and uri not in self

    def purge(self) -> None:
        """Forget the files that have become too old. Until this is called, none is too old."""
        oldest_ms = self._newest_ms - self._max_age_ms
        if oldest_ms == self._oldest_ms:
            return
        self._oldest_ms = oldest_ms
        # A large directory may have many small batches: copy only if something goes.
        if any(time_ms < oldest_ms for time_ms in self._times.values()):
            self._times = {
                key: time_ms for key, time_ms in self._times.items() if time_ms >= oldest_ms
            }
