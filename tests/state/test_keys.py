"""Keys and values as bytes: equal in Python means equal here, in every process."""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import math
import os
import pickle
import subprocess
import sys
import uuid
from collections.abc import Hashable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal, localcontext
from functools import cached_property
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import DEADLINE_S
from tidemill.errors import UsageError
from tidemill.state.keys import decode_key, decode_value, encode_key, encode_value, stable_hash


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class User:
    name: Any
    tags: Any = frozenset()

    @cached_property
    def shouted(self) -> str:
        return str(self.name).upper()


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    a: Any
    b: Any = 0


class Color(enum.Enum):
    RED = 1
    BLUE = 2


DAY = datetime.fromisoformat("2020-01-01")

# Few values each, so that equal ones of different types meet often.
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.integers(),
    st.booleans(),
    st.sampled_from([0.5, -0.0, 1.0, 2.0**53, 1e300, math.inf, -math.inf, 0.1]),
    st.floats(allow_nan=False),
    st.sampled_from([Decimal(t) for t in ("0.5", "0.50", "1", "1E+2", "-0", "0.1", "Infinity")]),
    st.decimals(allow_nan=False),
    st.sampled_from(
        [np.int8(1), np.uint64(2**63), np.float32(0.5), np.float64(0.1), np.bool_(True)]
    ),
    st.sampled_from([np.longdouble(2), np.longdouble(0.5), np.int64(-1), np.float16(100)]),
)
TEXTS = st.one_of(
    st.text(max_size=4),
    st.binary(max_size=4),
    st.sampled_from(["a", "b", "\ud800", "s", "", b"", b"a", np.str_("a"), np.bytes_(b"a")]),
)
TIMES = st.one_of(
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.datetimes(
        min_value=DAY,
        max_value=DAY + timedelta(days=1),
        timezones=st.sampled_from([UTC, timezone(timedelta(hours=1)), ZoneInfo("Asia/Tokyo")]),
    ).map(lambda time: time.replace(minute=0, second=0, microsecond=0)),
    st.dates(),
    st.timedeltas(),
    st.sampled_from(
        [np.datetime64("2020-01-01"), np.datetime64("2020-01-01", "ns"), np.timedelta64(1, "h")]
    ),
)
PLAIN = st.one_of(st.none(), NUMBERS, TEXTS, TIMES, st.sampled_from(Color), st.uuids())
KEYS = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(User, inner, st.frozensets(inner, max_size=3)),
        st.builds(Slotted, inner, inner),
    ),
    max_leaves=6,
)


def meaning(key: Any) -> Any:
    """Compare as Python's ``==`` does, except for values that are different keys on purpose."""
    if isinstance(key, (User, Slotted)):
        return (type(key), *(meaning(getattr(key, f.name)) for f in dataclasses.fields(key)))
    if isinstance(key, tuple):
        return (type(key), *map(meaning, key))
    if isinstance(key, frozenset):
        return frozenset(map(meaning, key))
    if isinstance(key, np.generic):
        if key.dtype.kind in "mM":
            return ("numpy", key.dtype.kind, key.astype(f"{key.dtype.kind}8[ns]").view("i8"))
        return float(key) if isinstance(key, np.longdouble) else key.item()
    return key


def equal(one: Any, other: Any) -> bool:
    return bool(meaning(one) == meaning(other))


@given(KEYS, KEYS)
def test_encodings_are_equal_exactly_when_keys_are(one: Hashable, other: Hashable) -> None:
    assert (encode_key(one) == encode_key(other)) == equal(one, other)


@given(st.lists(st.one_of(NUMBERS, TEXTS, TIMES), min_size=2, max_size=40))
def test_many_keys_make_as_many_encodings_as_a_dict_has_entries(keys: list[Hashable]) -> None:
    assert len({encode_key(key) for key in keys}) == len(set(map(meaning, keys)))


@given(KEYS)
def test_an_equal_key_comes_back(key: Hashable) -> None:
    encoded = encode_key(key)
    back = decode_key(encoded)
    assert equal(back, key)
    assert encode_key(back) == encoded
    assert stable_hash(back) == stable_hash(key)


@given(KEYS)
def test_a_copy_of_a_key_that_shares_no_object_with_it_is_the_same_key(key: Hashable) -> None:
    assert encode_key(pickle.loads(pickle.dumps(key))) == encode_key(key)  # noqa: S301


def in_other_types(key: Any) -> Any:
    """Return an equal key made of other objects, and of other types where there are any."""
    match key:
        case bool() | Color() | np.generic():
            return key
        case int() | float():
            return Decimal(key)
        case str():
            return "".join(list(key))
        case datetime() if key.tzinfo is UTC and key.year < 9999:
            return key.astimezone(timezone(timedelta(hours=3)))
        case tuple() | frozenset():
            parts = map(in_other_types, key)
            return Point(*parts) if isinstance(key, Point) else type(key)(parts)
        case User():
            return User(in_other_types(key.name), in_other_types(key.tags))
        case Slotted():
            return Slotted(in_other_types(key.a), in_other_types(key.b))
    return key


@given(KEYS)
def test_the_types_of_equal_parts_do_not_matter(key: Hashable) -> None:
    assert encode_key(in_other_types(key)) == encode_key(key)


IN_ANOTHER_PROCESS = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
from tidemill.state.keys import decode_key, encode_key, stable_hash
keys = pickle.load(sys.stdin.buffer)
encoded = [encode_key(key) for key in keys]
again = [encode_key(decode_key(data)) for data in encoded]
assert again == encoded
pickle.dump((encoded, list(map(stable_hash, keys))), sys.stdout.buffer)
"""


def many_keys() -> list[Any]:
    words = [f"word {n}" for n in range(30)]
    zone = timezone(timedelta(hours=-5))
    return [
        *words,
        *range(-5, 300),
        (10**700, -(10**5000)),
        frozenset(words),
        User("a", frozenset(words)),
        Slotted(frozenset(words), Point(frozenset(words), 1.0)),
        Point(frozenset(enumerate(words)), {"nested": set(words)}),
        ({1, "a"}, {"b": 1, "a": 2}),
        (Color.RED, None, True, b"\x00", Decimal("1.10"), 0.1, date(2020, 2, 3)),
        datetime(2020, 1, 1, tzinfo=zone),
        datetime(2020, 11, 1, 1, 30, tzinfo=ZoneInfo("America/New_York")),
        uuid.UUID(int=7),
        np.float32(0.1),
        np.longdouble(1) / 3,
        np.datetime64("2020-01-01T00:00:00.000000001"),
    ]


def test_another_process_with_other_hashes_has_the_same_encodings() -> None:
    keys = many_keys()
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    mine = [encode_key(key) for key in keys]
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", IN_ANOTHER_PROCESS, root],
            input=pickle.dumps(keys),
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            timeout=DEADLINE_S,
            check=True,
        )
        theirs = pickle.loads(done.stdout)  # noqa: S301
        assert theirs == (mine, list(map(stable_hash, keys)))


NEW_YORK = ZoneInfo("America/New_York")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0, -0.0),
        (1, Decimal("1.00")),
        (100, Decimal("1E+2")),
        (0.5, Decimal("0.5")),
        (math.inf, Decimal("Infinity")),
        (2**53, 2.0**53),
        (1e300, int(1e300)),
        (math.nan, -math.nan),
        (math.nan, Decimal("NaN")),
        (math.nan, np.float32("nan")),
        ((10**5000,), (Decimal(10) ** 5000,)),
        (("x", "x"), ("x", "".join(["x"]))),
        (np.int64(7), 7),
        (np.float32(0.25), 0.25),
        (np.longdouble(0.25), 0.25),
        (np.str_("a"), "a"),
        (np.datetime64("2020-01-01", "ns"), np.datetime64("2020-01-01", "us")),
        (np.datetime64("2020-01-01", "D"), np.datetime64("2020-01-01T00:00:00", "s")),
        (np.timedelta64(90, "m"), np.timedelta64(5400, "s")),
        (
            datetime(2020, 1, 1, 12, tzinfo=UTC),
            datetime(2020, 1, 1, 21, tzinfo=ZoneInfo("Asia/Tokyo")),
        ),
        (DAY.replace(fold=1), DAY),
        (
            datetime(2020, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=1),
            datetime(2020, 11, 1, 1, 30, tzinfo=NEW_YORK),
        ),
        (Point(1, "a"), Point(1.0, "a")),
        (User(Decimal(3), frozenset("ab")), User(3, frozenset("ba"))),
        (frozenset([1, (2.0, "a")]), frozenset([(2, "a"), True])),
    ],
)
def test_the_same_key(one: Any, other: Any) -> None:
    assert encode_key(one) == encode_key(other)
    assert encode_key(("in a tuple", one)) == encode_key(("in a tuple", other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", 1),
        ("a", b"a"),
        (None, "n"),
        ((), frozenset()),
        (("a", "b"), ("ab",)),
        (("a", ("b",)), ("a", "b")),
        (("ab", "c"), ("a", "bc")),
        (0.1, Decimal("0.1")),
        (0.1, np.float32(0.1)),
        (2**53 + 1, 2.0**53),
        (np.longdouble(1) / 3, 1 / 3),
        (np.datetime64("NaT"), None),
        (np.datetime64("2020-01-01", "ns"), 1_577_836_800_000_000_000),
        (np.datetime64(1, "ns"), np.datetime64(2, "ns")),
        (np.timedelta64(1, "Y"), np.timedelta64(1, "M")),
        (np.datetime64("2020-01-01"), DAY),
        (np.datetime64(2**40, "D"), np.datetime64(2**40 + 1, "D")),
        (date(2020, 1, 1), DAY),
        (DAY, datetime(2020, 1, 1, tzinfo=UTC)),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), datetime.max),
        (User("a"), Slotted("a")),
        (Color.RED, Color.BLUE),
        (Color.RED, 1),
        (Point(1, 2), (1, 2)),
        (uuid.UUID(int=1), 1),
        (int, "int"),
    ],
)
def test_different_keys(one: Any, other: Any) -> None:
    assert encode_key(one) != encode_key(other)


def test_a_decimal_is_a_key_with_all_its_digits_whatever_the_precision_of_the_thread() -> None:
    long = Decimal("0." + "1" * 40)
    with localcontext() as context:
        context.prec = 5
        encoded = encode_key(long)
        assert encode_key(long + 0) != encoded
        assert decode_key(encoded) == long
    assert encode_key(Decimal("0." + "1" * 40 + "2")) != encoded
    assert decode_key(encode_key(Decimal("-1.5E-400"))) == Decimal("-1.5E-400")
    # As an int it would have 10 ** 18 digits.
    enormous = Decimal("7E+999999999999999999")
    assert decode_key(encode_key(enormous)) == enormous


def test_what_a_key_has_worked_out_is_no_part_of_it() -> None:
    fresh, used = User("a"), User("a")
    assert used.shouted == "A"
    assert encode_key(used) == encode_key(fresh)
    one, other = (ipaddress.ip_network("10.0.0.0/8") for _ in range(2))
    assert one.num_addresses == 2**24
    assert encode_key(one) == encode_key(other)
    assert decode_key(encode_key(one)) == one


def test_a_uuid_is_the_same_key_wherever_it_comes_from() -> None:
    made = uuid.uuid1()  # knows whether it was made in a way that is safe
    assert encode_key(made) == encode_key(uuid.UUID(str(made)))
    assert decode_key(encode_key(made)) == made


def test_subclasses_come_back_as_what_they_were() -> None:
    for key in (Point(1, Point("a", None)), Color.BLUE, Slotted(1, 2), User("u", frozenset([1]))):
        back = decode_key(encode_key(key))
        assert back == key
        assert type(back) is type(key)


def test_a_key_whose_class_has_no_name_that_others_know_is_refused_with_a_remedy() -> None:
    @dataclasses.dataclass(frozen=True)
    class Mine:
        a: int

    with pytest.raises(UsageError, match=r"Mine\(a=1\) cannot be a key(.|\n)*addPyFile"):
        encode_key(Mine(1))
    with pytest.raises(UsageError, match="cannot be a key"):
        encode_key(("nested", lambda: None))


@given(
    st.recursive(
        st.one_of(st.none(), st.integers(), st.text(), st.floats(allow_nan=False), st.binary()),
        lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
        max_leaves=10,
    )
)
def test_values_come_back(value: Any) -> None:
    assert decode_value(encode_value(value)) == value


def test_values_that_only_cloudpickle_can_write_come_back_anywhere() -> None:
    class Total:
        def __init__(self, amount: int) -> None:
            self.amount = amount

        def doubled(self) -> int:
            return 2 * self.amount

    values = [Total(21), (lambda: 42), {"module": os, "call": lambda: 42}]
    encoded = [encode_value(value) for value in values]
    here = [decode_value(data) for data in encoded]
    assert (here[0].doubled(), here[1](), here[2]["call"]()) == (42, 42, 42)
    program = (
        "import pickle, sys\n"
        "total, call, mixed = map(pickle.loads, pickle.load(sys.stdin.buffer))\n"
        "print(total.doubled(), call(), mixed['call'](), mixed['module'].sep)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(encoded),
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stdout.split() == [b"42", b"42", b"42", b"/"]


def test_a_value_that_nothing_can_write_is_an_error() -> None:
    with pytest.raises((TypeError, pickle.PicklingError), match="generator"):
        encode_value(n for n in range(3))
