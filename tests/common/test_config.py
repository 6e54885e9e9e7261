from __future__ import annotations

import pytest

from tidemill.common import config
from tidemill.errors import OptionError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("60s", 60_000),
        ("250ms", 250),
        ("2min", 120_000),
        ("1m", 60_000),
        ("1h", 3_600_000),
        ("5", 5_000),
    ],
)
def test_times_as_spark_writes_them(text: str, expected: int) -> None:
    assert config.time_ms(text) == expected


@pytest.mark.parametrize("text", ["", "s", "-1s", "1.5s", "10 parsecs", "\u0661s"])
def test_a_time_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time"):
        config.time_ms(text)


@pytest.mark.parametrize(("text", "expected"), [("250", 250), ("0", None), ("-1", None)])
def test_a_rate_of_nothing_is_no_limit(text: str, expected: int | None) -> None:
    assert config.RECEIVER_MAX_RATE.read({"spark.streaming.receiver.maxRate": text}) == expected


def test_bare_numbers_have_the_unit_that_they_have_in_spark() -> None:
    def read(setting: config.Setting[int]) -> int:
        return setting.read({setting.key: "7"})

    assert read(config.BLOCK_INTERVAL_MS) == 7
    assert read(config.BLOCK_STORE_TIMEOUT_MS) == 7000
    assert read(config.DYNAMIC_ALLOCATION_SCALING_INTERVAL_MS) == 7000


def test_every_default_can_be_written_down() -> None:
    """Every default is a value that a user could set."""
    for setting in config.ALL_SETTINGS:
        if setting.default is not None:
            unit = "ms" if setting.key.endswith(("Interval", "Timeout", "Duration")) else ""
            assert setting.read({setting.key: f"{setting.default}{unit}"}) == setting.default


def test_a_setting_nobody_made_has_its_default() -> None:
    assert config.CONCURRENT_JOBS.read({}) == 1
    assert config.UNPERSIST.read({}) is True
    assert config.GRACEFUL_STOP_TIMEOUT_MS.read({}) is None


def test_a_setting_is_read_from_its_text() -> None:
    conf = {
        "spark.streaming.concurrentJobs": "3",
        "spark.streaming.unpersist": "False",
        "spark.streaming.gracefulStopTimeout": "1500",
        "spark.streaming.fileStream.minRememberDuration": "10",
    }
    assert config.CONCURRENT_JOBS.read(conf) == 3
    assert config.UNPERSIST.read(conf) is False
    assert config.GRACEFUL_STOP_TIMEOUT_MS.read(conf) == 1500
    assert config.FILE_MIN_REMEMBER_MS.read(conf) == 10_000


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (config.CONCURRENT_JOBS, "0"),
        (config.CONCURRENT_JOBS, "many"),
        (config.UNPERSIST, "yes"),
        (config.FILE_MIN_REMEMBER_MS, "soon"),
        (config.RECEIVER_MAX_RATE, "1.5"),
        (config.RECEIVER_MAX_RATE, "-"),
        (config.RATE_ESTIMATOR, "PID"),
        (config.PID_PROPORTIONAL, "1_0"),
        (config.PID_INTEGRAL, "-0.1"),
        (config.PID_DERIVATIVE, "inf"),
        (config.PID_MIN_RATE_PER_S, "0"),
        (config.BLOCK_INTERVAL_MS, "0"),
        (config.DYNAMIC_ALLOCATION_SCALING_UP_RATIO, "half"),
    ],
)
def test_a_bad_value_is_refused_with_the_name_of_the_setting(
    setting: config.Setting[object], text: str
) -> None:
    with pytest.raises(OptionError, match=f"{setting.key} is '{text}': expected") as refused:
        setting.read({setting.key: text})
    assert refused.value.option == setting.key


def test_every_setting_is_documented() -> None:
    assert all(setting.doc for setting in config.ALL_SETTINGS)
