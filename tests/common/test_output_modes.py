from __future__ import annotations

import pytest

from tidemill.common.output_modes import ALL_MODES, parse_output_mode
from tidemill.errors import OptionError


def test_a_mode_is_known_in_any_case() -> None:
    for mode in ALL_MODES:
        assert parse_output_mode(mode) == mode
        assert parse_output_mode(mode.capitalize()) == mode
        assert parse_output_mode(mode.upper()) == mode


def test_an_unknown_mode_is_refused_with_the_near_one() -> None:
    with pytest.raises(OptionError) as error:
        parse_output_mode("updat")
    assert error.value.option == "outputMode"
    assert str(error.value) == (
        "Invalid streaming output mode: updat. Accepted output modes are 'Append', 'Complete', "
        "'Update'. Did you mean update?"
    )
    with pytest.raises(OptionError, match=r"'Update'\.$"):
        parse_output_mode("upsert")
