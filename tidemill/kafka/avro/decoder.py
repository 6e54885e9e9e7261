"""``from_confluent_avro``: a column of framed Avro messages as a column of their contents.

Confluent's serializers put five bytes before each message: a zero and the id of its schema in a registry, as
a number of four bytes, the first byte first. Spark's own ``from_avro`` would read them as data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type

from tidemill.common.options import Options
from tidemill.errors import DecodeError, OptionError
from tidemill.kafka.avro.resolution import reader_of, writer_of
from tidemill.kafka.avro.schemas import WriterSchemas, fastavro, parsed
from tidemill.kafka.avro.types import ColumnType, Convert, column_type

if TYPE_CHECKING:
    from pyspark.sql import Column

MODES = ("FAILFAST", "PERMISSIVE")
FRAME = 5


def from_confluent_avro(
    data: Column | str,
    schema: str,
    options: Mapping[str, str] | None = None,
    *,
    reader_schema: str | None = None,
    at: Sequence[Column | str] = (),
) -> Column:
    """Return the contents of Avro messages that Confluent's serializers wrote, in streams and in batches::

        orders = from_confluent_avro("value", "schemas", at=["topic", "partition", "offset"])
        stream.select(orders.alias("order")).select("order.*")

    ``schema`` is the JSON of the schema that all messages were written with, or a folder on the driver with
    a file ``<id>.avsc`` for each id of the registry. With a folder, messages of all its schemas are read as
    ``reader_schema``, by default the one with the largest id. The files are read once, now.

    As in Spark's ``from_avro``, the option ``mode`` says what becomes of a message that cannot be read:
    ``FAILFAST`` fails, ``PERMISSIVE`` gives null. ``at`` are columns that say in the error where it was.
    """
    mode = _mode(options or {})
    schemas = WriterSchemas.load(schema, reader_schema)
    result = column_type(schemas.reader).spark
    decoder = _Decoder(schemas, mode == "PERMISSIVE")

    def decode(values: pa.Array, *places: pa.Array) -> pa.Array:
        return decoder(values, *places)

    # The stubs of PySpark know atomic types only.
    make: Any = arrow_udf
    column: Column = make(decode, result)(data, *at)
    return column


def _mode(options: Mapping[str, str]) -> str:
    given = Options(options, "from_confluent_avro")
    given.refuse_unknown(["mode"])
    mode = given.get("mode", MODES[0]).upper()
    if mode not in MODES:
        raise OptionError(
            f"option mode of from_confluent_avro is {mode!r}: there are {' and '.join(MODES)}",
            "mode",
        )
    return mode


Place = tuple[int, int, Sequence[Any]]
"""Which row of how many, and the columns that say where it was."""


class _BadMessageError(Exception):
    """What is wrong with one message."""


class _Decoder:
    """Decodes the messages of an Arrow batch. Goes to executors, with the texts of the schemas."""

    def __init__(self, schemas: WriterSchemas, is_permissive: bool) -> None:
        self._schemas = schemas
        self._is_permissive = is_permissive
        self._decode: Any = None  # fastavro's function, in a task

    def __call__(self, values: pa.Array, *places: pa.Array) -> pa.Array:
        result = column_type(self._schemas.reader)
        self._decode = fastavro().schemaless_reader
        rows: list[Any] = []
        ids: set[int] = set()
        for number, frame in enumerate(values.to_pylist()):
            rows.append(self._row(frame, ids, result, (number, len(values), places)))
        wanted = to_arrow_type(result.spark, timezone="UTC")
        try:
            return pa.array(rows, result.arrow).cast(wanted)
        except pa.ArrowException:
            pass
        # A value does not fit the type of its column, such as a decimal with too many digits: which one?
        for number, row in enumerate(rows):
            try:
                pa.array([row], result.arrow).cast(wanted)
            except pa.ArrowException as error:
                self._fails(
                    f"its values do not fit the types of the reader ({error})",
                    (number, len(values), places),
                )
                rows[number] = None
        return pa.array(rows, result.arrow).cast(wanted)

    def _row(self, frame: bytes | None, ids: set[int], result: ColumnType, place: Place) -> Any:
        if frame is None:
            return None
        try:
            row = self._read(frame, ids)
            return row if row is None or result.convert is None else _converted(row, result.convert)
        except _BadMessageError as error:
            self._fails(str(error), place)
            return None

    def _fails(self, finding: str, place: Place) -> None:
        """Raise for a message that cannot be read, unless it may become null."""
        if not self._is_permissive:
            raise DecodeError(_told(*place, finding)) from None

    def _read(self, frame: bytes, ids: set[int]) -> Any:
        if len(frame) < FRAME:
            raise _BadMessageError(f"it has {len(frame)} bytes, and a frame alone has {FRAME}")
        if frame[0] != 0:
            raise _BadMessageError(
                f"it begins with byte {frame[0]:#04x}, and a message of Confluent's serializers begins with "
                "0x00: it may be plain Avro, or no Avro at all"
            )
        number = int.from_bytes(frame[1:FRAME], "big")
        writer = self._writer(number, ids)
        stream = BytesIO(frame)
        stream.seek(FRAME)
        try:
            row = self._decode(
                stream,
                *self._parsed(writer),
                return_named_type=True,
                return_named_type_override=True,
            )
        except Exception as error:  # fastavro raises whatever the bytes lead to
            reason = str(error) or "it ends too early"
            raise _BadMessageError(f"schema {number} does not fit it ({reason})") from None
        left = len(frame) - stream.tell()
        if left:
            raise _BadMessageError(f"schema {number} does not fit it: {left} bytes are left over")
        return row

    def _parsed(self, writer: str) -> tuple[Any, Any]:
        if writer == self._schemas.reader:
            return parsed(writer), None
        return writer_of(writer), reader_of(self._schemas.reader)

    def _writer(self, number: int, ids: set[int]) -> str:
        if self._schemas.by_id:
            writer = self._schemas.by_id.get(number)
            if writer is None:
                raise _BadMessageError(
                    f"it was written with schema {number}, and there is no {number}.avsc in the folder of "
                    "schemas"
                )
            return writer
        ids.add(number)
        if len(ids) > 1:
            raise _BadMessageError(
                f"it was written with schema {number}, and others with {min(ids - {number})}: give a folder "
                "with both, because one schema cannot read the two"
            )
        return self._schemas.reader


def _converted(row: Any, convert: Convert) -> Any:
    try:
        return convert(row)
    except (AttributeError, KeyError, TypeError) as error:
        raise _BadMessageError(f"its values do not fit the types of the reader ({error})") from None


def _told(number: int, rows: int, places: Sequence[pa.Array], finding: str) -> str:
    where = f"row {number} of the {rows} that a task decoded together"
    if places:
        where = " ".join(str(place[number].as_py()) for place in places)
    return (
        f"from_confluent_avro cannot read the message at {where}: {finding}. To get null for such "
        'messages, set {"mode": "PERMISSIVE"}'
    )
