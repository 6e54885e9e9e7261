"""Sources by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange, RangeSize
from tidemill.batches.table_source import Split, SplitReader, SplitSource
from tidemill.common.suggestions import nearest
from tidemill.errors import SetupError, UsageError
from tidemill.sources import registry
from tidemill.sources.rate import RateSource


class Numbers(SplitSource):
    known_options = frozenset({"perBatch"})

    def __init__(self, options: Mapping[str, str]) -> None:
        self.per_batch = int(options.get("perBatch", "10"))

    def schema(self) -> StructType:
        return StructType([StructField("n", LongType())])

    def initial_offset(self) -> Offset:
        return 0

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        return start + self.per_batch

    def size(self, range_: OffsetRange) -> RangeSize:
        return RangeSize(range_.end - range_.start)

    def splits(self, range_: OffsetRange, parallelism: int) -> list[Split]:
        return [[range_.start, range_.end]]

    def split_reader(self) -> SplitReader:
        raise NotImplementedError


@pytest.fixture
def numbers() -> Iterator[None]:
    registry.register_source("Numbers", Numbers)
    yield
    registry.unregister_source("numbers")


def made(name: str, options: dict[str, str]) -> Any:
    factory = registry.source_named(name)
    assert factory is not None
    return factory(options)


@pytest.mark.usefixtures("numbers")
def test_a_source_of_the_programs_own_is_found_by_its_name_in_any_case() -> None:
    assert made("NUMBERS", {"PERBATCH": "3"}).per_batch == 3
    assert "numbers" in registry.names()
    assert getattr(registry.source_named("numbers"), "known_options", None) == {"perBatch"}
    registry.register_source("numbers", lambda options: RateSource(options))
    assert isinstance(made("numbers", {}), RateSource)


def test_built_in_sources_are_there() -> None:
    assert {"rate", "rate-micro-batch", "socket", "memory-stream"} <= set(registry.names())
    assert isinstance(made("rate", {"rowspersecond": "3"}), RateSource)
    assert registry.source_named("parquet") is None  # read by Spark, not in splits
    assert registry.source_named("nothing") is None


@pytest.mark.parametrize("name", ["rate", "Parquet", "mqtt", "KAFKA", "memory-stream"])
def test_names_of_built_in_formats_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="a format of Tidemill's own: give the source another"):
        registry.register_source(name, Numbers)


def test_what_is_no_source_is_refused() -> None:
    with pytest.raises(UsageError, match="must be a text"):
        registry.register_source("", Numbers)
    with pytest.raises(UsageError, match="must be a class or a function"):
        registry.register_source("numbers", 7)  # type: ignore[arg-type]
    registry.register_source("broken", lambda options: "x")  # type: ignore[arg-type,return-value]
    with pytest.raises(UsageError, match="'broken' gave 'x', which is not a SplitSource"):
        made("broken", {})
    registry.unregister_source("broken")


def test_near_names_are_suggested() -> None:
    assert nearest("rat", registry.names()) == "rate"
    assert nearest("rate-microbatch", registry.names()) == "rate-micro-batch"
    assert nearest("xyz", registry.names()) is None
    assert nearest("rowPerSec", RateSource.known_options) == "rowsPerSecond"


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("tidemill.sources.kafka")]:
        monkeypatch.delitem(sys.modules, module)
    for module in [name for name in sys.modules if name.startswith("tidemill.kafka")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(SetupError, match=r"confluent_kafka: pip install 'tidemill\[kafka\]'"):
        registry.source_named("kafka")
