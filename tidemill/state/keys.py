"""Keys and values as bytes.

Two keys that are equal in Python must be the same bytes, in every process and every version of Python.
Pickle does not promise that: it notices when the two strings of a tuple are one object, it treats ``1`` and
``1.0`` as different, and it writes a set in the order of its hashes. So the usual types of keys have an
encoding of their own, which also decides the partition of a key. Objects of other types are pickled, with
their parts in the same encodings; two such objects are the same key if their parts are.

Decoding returns an equal key, not always of the same type: ``True`` as ``1``, ``Decimal("0.5")`` as ``0.5``,
a time with a zone in UTC. The exception: subclasses of the usual types (a named tuple, an enum) and numpy's
times keep their type, and are therefore different keys from the plain values that they are equal to.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any
from uuid import UUID

import numpy as np
from pyspark import cloudpickle

from tidemill.errors import ProgramError

_DOUBLE = struct.Struct(">d")
_LENGTH = struct.Struct(">I")
_NAN = b"fnan"
# Python limits the number of decimal digits of an int, and a user can set the limit as low as 640.
_LONG_INT = 10**600
_LONG_DECIMAL = 10_000


def _encode_int(key: int) -> bytes:
    return b"i%d" % key if -_LONG_INT < key < _LONG_INT else b"x%x" % key


def _encode_float(key: float) -> bytes:
    # A float that equals an int is the same key as that int. NaN is one key, whatever its bits.
    if math.isfinite(key):
        return b"i%d" % int(key) if key == int(key) else b"f" + _DOUBLE.pack(key)
    return _NAN if key != key else b"f" + _DOUBLE.pack(key)


def _encode_decimal(key: Decimal) -> bytes:
    # Without normalize(): it rounds to the precision of the thread's context.
    if key.is_nan():
        return _NAN
    if key == float(key):
        return _encode_float(float(key))
    if key == key.to_integral_value() and key.adjusted() < _LONG_DECIMAL:
        return _encode_int(int(key))
    sign, digits, exponent = key.as_tuple()
    significant = "".join(map(str, digits)).rstrip("0")
    exponent = int(exponent) + len(digits) - len(significant)
    return b"d%s%sE%d" % (b"-" if sign else b"", significant.encode(), exponent)


def _encode_datetime(key: datetime) -> bytes:
    offset = key.utcoffset()
    local = key.replace(tzinfo=None, fold=0)
    if offset is None:
        return b"D" + local.isoformat().encode()
    if key.replace(fold=1 - key.fold).utcoffset() != offset:
        # In an hour that the zone has twice or not at all, it equals only times of the same zone.
        return _pickled(key.replace(fold=0))
    try:
        return b"U" + (local - offset).isoformat().encode()
    except OverflowError:
        return _pickled(key)


def _encode_numpy(key: Any) -> bytes:
    if key.dtype.kind in "mM":
        # Keep numpy's times: their unit decides which of Python's times they equal. Among themselves
        # they are equal whatever the unit.
        unit = "timedelta64[us]" if key.dtype.kind == "m" else "datetime64[us]"
        in_us = key.astype(unit)
        return _pickled(in_us if in_us.astype(key.dtype) == key else key)
    plain = key.item()
    if type(plain) is not type(key):
        return encode_key(plain)
    # The item() of a long double is a long double.
    return _encode_float(float(key)) if key == float(key) or key != key else _pickled(key)


def _join(tag: bytes, parts: list[bytes]) -> bytes:
    return tag + b"".join(_LENGTH.pack(len(part)) + part for part in parts)


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    str: lambda key: b"s" + key.encode("utf-8", "surrogatepass"),
    int: _encode_int,
    bool: lambda key: b"i%d" % key,
    float: _encode_float,
    bytes: lambda key: b"b" + key,
    type(None): lambda key: b"n",
    tuple: lambda key: _join(b"t", [encode_key(part) for part in key]),
    frozenset: lambda key: _join(b"z", sorted({encode_key(part) for part in key})),
    Decimal: _encode_decimal,
    UUID: lambda key: b"u" + key.bytes,
    datetime: _encode_datetime,
    # These are not keys themselves, but an object that is a key may have them as attributes.
    set: lambda key: _join(b"Z", sorted({encode_key(part) for part in key})),
    dict: lambda key: _join(b"m", sorted(encode_key(item) for item in key.items())),
    **dict.fromkeys(np.sctypeDict.values(), _encode_numpy),
}


def encode_key(key: Any) -> bytes:
    """Return the bytes of a key, the same for equal keys.

    >>> encode_key("a"), encode_key(1) == encode_key(1.0) == encode_key(True)
    (b'sa', True)
    """
    encoder = _ENCODERS.get(type(key))
    return _pickled(key) if encoder is None else encoder(key)


class _KeyPickler(pickle.Pickler):
    """Pickles an object, but encodes those of its parts that have an encoder."""

    def __init__(self, key: Any, file: io.BytesIO) -> None:
        super().__init__(file, 4)
        self.fast = True  # without a memo of seen objects, equal parts give equal bytes
        self._key = key

    def persistent_id(self, part: Any) -> bytes | None:
        encoder = _ENCODERS.get(type(part))
        return None if encoder is None or part is self._key else encoder(part)

    def reducer_override(self, part: Any) -> Any:
        # The cached properties of an object do not count for its equality.
        cls = type(part)
        kept = {
            name
            for name in getattr(part, "__dict__", ())
            if isinstance(getattr(cls, name, None), cached_property)
        }
        if not kept:
            return NotImplemented
        reduced = part.__reduce_ex__(4)
        if isinstance(reduced, str) or len(reduced) < 3 or not isinstance(reduced[2], dict):
            return reduced
        state = {name: value for name, value in reduced[2].items() if name not in kept}
        return *reduced[:2], state, *reduced[3:]


def _pickled(key: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        _KeyPickler(key, buffer).dump(key)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ProgramError(
            f"{key!r:.200} cannot be a key: {type(key).__qualname__} cannot be pickled by its name "
            f"({error}). Put the class into a module that the executors can import (addPyFile), or "
            "build the key from strings, numbers and tuples."
        ) from error
    return b"p" + buffer.getvalue()


def _split(data: bytes) -> list[Any]:
    parts, position = [], 1
    while position < len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        parts.append(decode_key(data[position : position + length]))
        position += length
    return parts


class _KeyUnpickler(pickle.Unpickler):
    def persistent_load(self, encoded: bytes) -> Any:
        return decode_key(encoded)


_DECODERS: dict[int, Callable[[bytes], Any]] = {
    ord("s"): lambda data: data[1:].decode("utf-8", "surrogatepass"),
    ord("i"): lambda data: int(data[1:]),
    ord("x"): lambda data: int(data[1:], 16),
    ord("f"): lambda data: math.nan if data == _NAN else _DOUBLE.unpack_from(data, 1)[0],
    ord("b"): lambda data: data[1:],
    ord("n"): lambda data: None,
    ord("t"): lambda data: tuple(_split(data)),
    ord("z"): lambda data: frozenset(_split(data)),
    ord("Z"): lambda data: set(_split(data)),
    ord("m"): lambda data: dict(_split(data)),
    ord("d"): lambda data: Decimal(data[1:].decode()),
    ord("u"): lambda data: UUID(bytes=data[1:]),
    ord("D"): lambda data: datetime.fromisoformat(data[1:].decode()),
    ord("U"): lambda data: datetime.fromisoformat(data[1:].decode()).replace(tzinfo=UTC),
    ord("p"): lambda data: _KeyUnpickler(io.BytesIO(data[1:])).load(),
}


def decode_key(data: bytes) -> Any:
    """Return a key that equals the encoded one.

    >>> decode_key(encode_key(("a", 1, None)))
    ('a', 1, None)
    """
    return _DECODERS[data[0]](data)


def stable_hash(key: Any) -> int:
    """Return the hash that decides a key's partition, the same in every process and for every hash seed."""
    return zlib.crc32(encode_key(key))


def encode_value(value: Any) -> bytes:
    try:
        return pickle.dumps(value, 5)
    except (pickle.PicklingError, AttributeError, TypeError):
        # A class that is defined in the program itself, not in a module, must be pickled by value.
        return bytes(cloudpickle.dumps(value, 5))  # type: ignore[no-untyped-call]


def decode_value(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 (our own state, behind a checksum)
