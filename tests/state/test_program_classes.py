"""Values of classes that a program defines itself."""

from __future__ import annotations

from tidemill.state.keys import encode_value
from tidemill.state.program_classes import ProgramClasses


def make(version: int) -> type:
    class Cart:
        def text(self) -> str:
            return f"version {version}"

    return Cart


def test_a_value_gets_the_class_of_the_program_by_its_name() -> None:
    old, new = make(1), make(2)
    data = encode_value([old(), "text"])
    value, text = ProgramClasses([new]).decode_value(data)
    assert type(value) is new
    assert (value.text(), text) == ("version 2", "text")


def test_a_value_keeps_its_class_where_the_program_has_none_of_that_name_or_two() -> None:
    data = encode_value(make(1)())
    for classes in ([], [type("Basket", (), {})], [make(2), make(3)]):
        assert ProgramClasses(classes).decode_value(data).text() == "version 1"


def test_text_that_looks_like_a_pickled_class_is_text() -> None:
    text = "_make_skeleton_class"
    assert ProgramClasses([make(1)]).decode_value(encode_value(text)) == text


def test_a_class_within_another_goes_by_its_own_name() -> None:
    """Cloudpickle keeps no other. So two classes of one name are never taken for each other only if the
    program has both.
    """

    class Outer:
        class Cart:
            def text(self) -> str:
                return "inner"

    data = encode_value(Outer.Cart())
    assert ProgramClasses([make(2)]).decode_value(data).text() == "version 2"
    assert ProgramClasses([make(2), Outer, Outer.Cart]).decode_value(data).text() == "inner"
