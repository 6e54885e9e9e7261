from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemill.sources.files import directory_mark
from tidemill.sources.files.directory_mark import SETTLED_AFTER_MS, lasting_mark, mark_of

MOUNTS = """\
25 30 0:23 / /sys rw,nosuid - sysfs sysfs rw
30 1 {local} / / rw,relatime shared:1 - ext4 /dev/sda1 rw
98 30 0:99 / /mnt/bucket rw - fuse.s3fs s3fs rw
"""


@pytest.mark.parametrize("file_system", ["ext4", "fuse.s3fs", "nfs4", None])
def test_only_change_times_that_the_kernel_keeps_are_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_system: str | None
) -> None:
    status = os.stat(tmp_path)
    mounts = tmp_path / "mountinfo"
    if file_system is not None:
        device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
        mounts.write_text(MOUNTS.format(local=device).replace("ext4", file_system))
    monkeypatch.setattr(directory_mark, "MOUNTS", str(mounts))
    long_after_ms = status.st_ctime_ns // 1_000_000 + SETTLED_AFTER_MS + 1
    expected = mark_of(status) if file_system == "ext4" else None
    assert lasting_mark(status, long_after_ms) == expected
    assert lasting_mark(status, long_after_ms - 2) is None, "it changed just now"


def test_a_mark_moves_with_every_name_even_if_the_modification_time_is_set_back(
    tmp_path: Path,
) -> None:
    os.utime(tmp_path, (1000, 1000))
    before = os.stat(tmp_path)
    while os.stat(tmp_path).st_ctime_ns == before.st_ctime_ns:  # the kernel's clock is coarse
        (tmp_path / "new").touch()
        (tmp_path / "new").unlink()
        os.utime(tmp_path, (1000, 1000))
    after = os.stat(tmp_path)
    assert before.st_mtime_ns == after.st_mtime_ns
    assert mark_of(before) != mark_of(after)
