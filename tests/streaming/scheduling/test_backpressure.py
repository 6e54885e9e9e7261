"""A directory stream that takes in as much as it can process, on real files and real Spark."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.manual_stream import Stream
from tidemill.testing import collected

LINE = "123456789\n"


def test_a_directory_stream_follows_the_speed_of_its_batches(
    setting: Callable[[str, str], None], new_stream: Callable[..., Stream], tmp_path: Path
) -> None:
    setting("spark.streaming.backpressure.enabled", "true")
    setting("spark.streaming.backpressure.initialRate", "20")
    setting("spark.streaming.backpressure.pid.minRate", "1")
    stream = new_stream(start_ms=1_000_000_000)
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    names = iter(range(100))

    def put(files: int) -> None:
        for name in (f"{next(names):03d}" for _ in range(files)):
            staged = tmp_path / name
            staged.write_text(LINE * 10)
            now_ns = stream.clock.now_ms() * 1_000_000
            os.utime(staged, ns=(now_ns, now_ns))
            staged.rename(incoming / name)

    # The duration of each batch. All together are less than one interval: the clock must not reach a
    # batch time while a batch runs.
    durations_ms = iter([10, 50, 500, 100, 200])

    def take_time(rdd: Any) -> None:
        stream.clock.advance(next(durations_ms))

    lines = stream.ssc.textFileStream(str(incoming))
    batches = collected(lines)
    lines.foreachRDD(take_time)
    put(3)
    stream.start_and_run(1)  # 20 lines could be 20 bytes, so one file only. 1000 lines a second
    stream.driver.run(1)  # 20 lines. 400 a second, which is the first rate
    put(5)
    stream.driver.run(1)  # everything, 50 lines. 100 a second
    put(30)
    stream.driver.run(1)  # 100 lines. 1000 a second
    stream.driver.run(1)  # the rest
    assert [len(batch) for batch in batches] == [10, 20, 50, 100, 200]
