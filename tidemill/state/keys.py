"""Keys and values as bytes.

Two keys that are equal in Python must be the same bytes, in every process and every version of Python.
Pickle does not promise that: it notices when the two strings of a tuple are one object, and ``1`` and
``1.0`` are different to it. So the usual types of keys have an encoding of their own, which is also what
decides the partition of a key; only other types are pickled, and are the same key if their pickles are.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zlib
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pyspark import cloudpickle

_DOUBLE = struct.Struct(">d")
_LENGTH = struct.Struct(">I")


def _encode_float(key: float) -> bytes:
    # Equal to an int means: the same key as that int. Not a number is one key, whatever its bits.
    if math.isfinite(key):
        return b"i%d" % int(key) if key == int(key) else b"f" + _DOUBLE.pack(key)
    return b"f" + (b"nan" if key != key else _DOUBLE.pack(key))


def _encode_decimal(key: Decimal) -> bytes:
    if key.is_finite() and key == key.to_integral_value():
        return b"i%d" % int(key)
    return b"d" + str(key.normalize()).encode()


def _join(tag: bytes, parts: list[bytes]) -> bytes:
    return tag + b"".join(_LENGTH.pack(len(part)) + part for part in parts)


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    str: lambda key: b"s" + key.encode("utf-8", "surrogatepass"),
    int: lambda key: b"i%d" % key,
    bool: lambda key: b"i%d" % key,
    float: _encode_float,
    bytes: lambda key: b"b" + key,
    type(None): lambda key: b"n",
    tuple: lambda key: _join(b"t", [encode_key(part) for part in key]),
    frozenset: lambda key: _join(b"z", sorted(encode_key(part) for part in key)),
    Decimal: _encode_decimal,
}


def encode_key(key: Any) -> bytes:
    """
    >>> encode_key("a"), encode_key(1) == encode_key(1.0) == encode_key(True)
    (b'sa', True)
    """
    encoder = _ENCODERS.get(type(key))
    if encoder is not None:
        return encoder(key)
    if (
        type(key).__module__ == "numpy"
        and hasattr(key, "item")
        and getattr(key, "shape", None) == ()
    ):
        return encode_key(key.item())
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, 4)
    pickler.fast = True  # no memory of objects seen: equal parts give equal bytes
    pickler.dump(key)
    return b"p" + buffer.getvalue()


def _split(data: bytes) -> list[Any]:
    parts, position = [], 1
    while position < len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        parts.append(decode_key(data[position : position + length]))
        position += length
    return parts


_DECODERS: dict[int, Callable[[bytes], Any]] = {
    ord("s"): lambda data: data[1:].decode("utf-8", "surrogatepass"),
    ord("i"): lambda data: int(data[1:]),
    ord("f"): lambda data: math.nan if data == b"fnan" else _DOUBLE.unpack_from(data, 1)[0],
    ord("b"): lambda data: data[1:],
    ord("n"): lambda data: None,
    ord("t"): lambda data: tuple(_split(data)),
    ord("z"): lambda data: frozenset(_split(data)),
    ord("d"): lambda data: Decimal(data[1:].decode()),
    ord("p"): lambda data: pickle.loads(data[1:]),  # noqa: S301 (our own state, behind a checksum)
}


def decode_key(data: bytes) -> Any:
    """
    >>> decode_key(encode_key(("a", 1, None)))
    ('a', 1, None)
    """
    return _DECODERS[data[0]](data)


def stable_hash(key: Any) -> int:
    """Where a key belongs: the same in every process, whatever ``PYTHONHASHSEED`` says."""
    return zlib.crc32(encode_key(key))


def encode_value(value: Any) -> bytes:
    try:
        return pickle.dumps(value, 5)
    except (pickle.PicklingError, AttributeError):
        # A class that is defined in the program itself, not in a module, can only go along by value.
        return bytes(cloudpickle.dumps(value, 5))  # type: ignore[no-untyped-call]


def decode_value(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 (our own state, behind a checksum)
