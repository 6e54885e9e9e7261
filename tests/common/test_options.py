"""Options: names in any case, errors that name the option and suggest a near one."""

from __future__ import annotations

import logging

import pytest

from tidemill.common.config import positive_int
from tidemill.common.options import Options, non_empty
from tidemill.errors import OptionError
from tidemill.sql.query_errors import QueryArgumentError


def test_names_are_found_in_any_case_and_keep_their_last_spelling() -> None:
    options = Options({"maxFiles": 1, "Path": "/in"})
    options["MAXFILES"] = "2"
    assert dict(options) == {"MAXFILES": "2", "Path": "/in"}
    assert options["maxfiles"] == "2"
    assert "PATH" in options
    del options["path"]
    assert list(options) == ["MAXFILES"]
    assert list(options.without(["maxFiles"])) == []


def test_a_bad_value_is_refused_by_name() -> None:
    options = Options({"PORT": " x "}, "the socket source")
    with pytest.raises(
        OptionError, match="port of the socket source is ' x ': expected a whole"
    ) as error:
        options.read("port", positive_int, 1)
    assert error.value.option == "port"
    assert options.read("host", non_empty, "localhost") == "localhost"
    with pytest.raises(OptionError, match="the socket source needs the option host") as error:
        options.required("host", non_empty, '"localhost"')
    assert error.value.option == "host"


def test_options_made_of_a_readers_options_raise_the_readers_type() -> None:
    of_reader = Options({"rows": "x"}, error=QueryArgumentError)
    for options in (Options(of_reader, "the rate source"), of_reader.without(["path"])):
        with pytest.raises(QueryArgumentError) as error:
            options.read("rows", positive_int, 1)
        assert error.value.option == "rows"


def test_an_unknown_option_is_refused_with_a_near_name_or_all_names() -> None:
    known = ["rowsPerSecond", "numPartitions"]
    options = Options({"ROWSPERSECOND": "1", "rowPerSecond": "1"}, "the rate source")
    with pytest.raises(OptionError) as error:
        options.refuse_unknown(known)
    assert str(error.value) == (
        "the rate source has no option rowPerSecond. Did you mean rowsPerSecond?"
    )
    assert error.value.option == "rowPerSecond"
    with pytest.raises(
        OptionError, match=r"no option zebra\. There are numPartitions, rowsPerSecond."
    ):
        Options({"zebra": "1"}).refuse_unknown(known)
    with pytest.raises(OptionError, match=r"no option a\.b"):
        Options({"a.b": "1"}).refuse_unknown(known)
    Options({"a.b": "1"}).refuse_unknown(known, settings_allowed=True)


def test_a_slip_is_refused_and_a_strange_name_only_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(OptionError, match=r"headr\. Did you mean header\?"):
        Options({"headr": "1"}, "the test format").refuse_slips(["header"])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            Options({"zebra": "1", "parquet.x": "1"}, "the test format").refuse_slips(["header"])
    assert [record.message for record in caplog.records] == [
        "the test format has no option zebra that is known: it may have no effect"
    ]
