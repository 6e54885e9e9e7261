"""Write files, every batch exactly once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    BooleanType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructType,
)

from tidemill.batches.sink import BatchOutput, Sink, SinkRuntime
from tidemill.checkpoint.leftovers import WRITTEN_FOLDERS
from tidemill.checkpoint.ownership import OWNER
from tidemill.common.clock import Clock
from tidemill.common.fault_points import fault_point
from tidemill.common.output_modes import APPEND
from tidemill.errors import CheckpointError, IllegalStateError, OwnershipLostError, SinkError
from tidemill.sinks.files.file_sink_options import FileSinkOptions
from tidemill.sinks.files.manifest import FileManifest, ManifestFile, ManifestSettings
from tidemill.sinks.files.staging import COMPARED, STAGING, StagedBatch, remove_all_staging
from tidemill.sinks.files.target_directory import TargetDirectory, open_target
from tidemill.spark.files.file_formats import is_file_format
from tidemill.spark.files.file_writer import SparkFileWriter
from tidemill.spark.files.hadoop_files import locate
from tidemill.spark.session.catalog_table import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemill.sinks.table_columns import TableColumns


KEEP_EVERYTHING = ("parquet", "orc")
"""The formats of which every value comes back as it was."""

_KEPT_IN_NAMES = (IntegralType, DecimalType, DateType, BooleanType)


class FileSink(Sink):
    """Adds the rows of each batch to a directory, as files of any format that Spark writes to files.

    Readers that know Spark's manifest (``spark.read``, Spark's file source, Tidemill's) see whole batches
    only, each once. Others see at worst the files of one batch that a crash has interrupted, until the
    query is started again.

    Staging a batch, and what is durable after each step:

    1. What earlier attempts have left is removed: the files that their journals name, then their staging.
    2. Spark writes the rows into ``_tidemill_staging/<query>/<batch>/<attempt>/files``, which readers ignore.
    3. The files are made durable, then a journal of where each of them will be: from now on everything that
       this attempt puts into sight can be found and removed again.

    Committing it:

    4. IF the manifest has the batch, it is visible and durable: only the staging is removed.
    5. The files are moved into place, under names that no other batch uses. Their names are durable after it.
    6. The manifest entry is made, or fails if there is one: the batch is visible as a whole, and durable. An
       error until here is undone at once, a crash by step 1 of the next run.
    7. The staging folder, with the journal, is removed.

    A driver that has been replaced by another while it was paused does none of 1, 5 and 6: they happen while
    the checkpoint cannot be taken over.

    Options of its own, all others go to Spark's writer:

    * ``retention``, such as ``7d``: files that are older leave the manifest, when it is next written as a
      whole, and are not read any more. They are not deleted;
    * ``allowForeignFiles``: write into a directory that has other files, too. Readers of the manifest stop
      seeing those;
    * ``allowMissingBatches``: go on although the manifest lacks the last batches of the query, because they
      have been written elsewhere. The manifest gets empty ones in their place.
    """

    modes = (APPEND,)

    def __init__(
        self,
        format: str,
        path: str,
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        columns: TableColumns | None = None,
    ) -> None:
        """``columns`` are those to write instead of the query's own."""
        self._columns = columns
        self._format = format
        self._path = path
        # With the file system, as soon as the session has said which one it is.
        self._place = path
        self._partition_by = list(partition_by)
        self._options = FileSinkOptions(options or {})
        self._clock = clock
        self._target: TargetDirectory
        self._is_opened = False
        self._manifest: FileManifest
        self._writer: SparkFileWriter
        self._runtime: SinkRuntime | None = None
        self._claimed = False
        self._is_manifest_stale = False
        self._staged: tuple[int, StagedBatch, Sequence[str]] | None = None

    def description(self) -> str:
        return f"FileSink[{self._place}]"

    def start(self, runtime: SinkRuntime) -> None:
        if not is_file_format(runtime.session, self._format):
            raise SinkError(
                f"there is no sink for the format {self._format}: Spark knows no format of files of that "
                "name. If it is one of a package, add the package to the session."
            )
        self._options.check(runtime.session, self._format)
        schema = schema_of(runtime) if self._columns is None else self._columns.schema
        check_columns(self._format, schema, self._partition_by)
        place, is_local = locate(runtime.session.sparkContext, self._path)
        self._place = f"file:{place}" if is_local else place
        self._target = open_target(runtime.session, self._path)
        self._is_opened = True
        try:
            self._target.make()
        except OSError as error:
            raise SinkError(
                f"the {self._format} sink cannot write to {self._path}: {error.strerror or error}. Write to "
                "a directory that this program may write to, or make it."
            ) from None
        settings = ManifestSettings.read(runtime.session.conf, self._options.retention_ms)
        self._manifest = FileManifest(self._target, settings, self._clock)
        self._manifest.load()
        self._require_own(runtime)
        remove_all_staging(self._target, runtime.query_id, self._manifest.latest)
        self._writer = SparkFileWriter(
            runtime.session, self._format, self._options.for_spark, self._partition_by
        )
        self._runtime = runtime

    def undo_start(self) -> None:
        if self._is_opened:
            self._target.unmake()

    def has_batch(self, batch_id: int) -> bool:
        if self._is_manifest_stale:
            self._manifest.load()
            self._is_manifest_stale = False
        latest = self._manifest.latest
        return latest is not None and batch_id <= latest

    def stage(self, output: BatchOutput) -> int | None:
        runtime = self._started()
        staged = StagedBatch(self._target, runtime.query_id, output.batch_id)
        with runtime.checkpoint.as_owner():
            staged.undo()  # 1
        fault_point("sink.begun")
        try:
            folder = f"{self._target.uri}/{staged.folder}"
            rows = output.dataframe(consumed_once=True)
            self._writer.write(
                rows if self._columns is None else self._columns.fit(rows), folder
            )  # 2
            fault_point("sink.staged")
            moves = staged.make_durable()  # 3
            fault_point("sink.journaled")
        except Exception:
            # What is staged by a driver that has been replaced, its successor removes.
            with suppress(OwnershipLostError), runtime.checkpoint.as_owner():
                staged.undo()
            raise
        self._staged = output.batch_id, staged, moves
        return None

    def commit(self, batch_id: int) -> None:
        runtime = self._started()
        if not self._claimed:
            self._require_unclaimed(runtime)
        if self.has_batch(batch_id):  # 4
            StagedBatch(self._target, runtime.query_id, batch_id).remove()
            return
        if self._staged is None or self._staged[0] != batch_id:
            raise IllegalStateError(f"batch {batch_id} has not been staged in {self.description()}")
        _, staged, moves = self._staged
        self._staged = None
        with runtime.checkpoint.as_owner():
            self._show(staged, batch_id, moves)
        fault_point("sink.committed")
        self._claim(runtime)
        staged.remove()  # 7

    def _show(self, staged: StagedBatch, batch_id: int, moves: Sequence[str]) -> None:
        try:
            files = staged.move(moves)  # 5
            fault_point("sink.moved")
        except Exception:
            staged.undo()
            raise
        try:
            self._add_to_manifest(batch_id, files)  # 6
        except FileExistsError:
            staged.undo()
            raise self._somebody_else(f"batch {batch_id} has been written there") from None
        except BaseException:
            self._is_manifest_stale = True  # it may or may not have the batch
            raise

    def stop(self) -> None:
        if self._runtime is not None and self._staged is not None:  # nobody will commit it
            with suppress(OwnershipLostError), self._runtime.checkpoint.as_owner():
                self._staged[1].undo()
            self._staged = None
        if self._runtime is not None:
            StagedBatch.remove_empty_folders(self._target, self._runtime.query_id)

    def table(self) -> DataFrame:
        """Return all committed rows, for verification."""
        return self._read(self._target.uri, schema_of(self._started()))

    def kept_as(self) -> str:
        format = self._format.lower()
        if format not in KEEP_EVERYTHING:
            return f"{format} files"
        # The name of a folder has no empty string, for example.
        types = {f.name.lower(): f.dataType for f in schema_of(self._started()).fields}
        partitions = (types[name.lower()] for name in self._partition_by if name.lower() in types)
        return "" if all(isinstance(each, _KEPT_IN_NAMES) for each in partitions) else "partitions"

    @contextmanager
    def read_back(self, rows: DataFrame) -> Iterator[DataFrame]:
        if not self.kept_as():
            yield rows
            return
        runtime = self._started()
        folder = f"{STAGING}/{runtime.query_id}/{COMPARED}/{uuid.uuid4().hex[:8]}"
        uri = f"{self._target.uri}/{folder}/files"
        schema = schema_of(runtime)
        try:
            if self._columns is None:
                self._writer.write(rows, uri)
                yield self._read(uri, schema)
            else:
                self._writer.write(self._columns.fit(rows), uri)
                yield self._read(uri, self._columns.schema).select(*map(quoted, schema.names))
        finally:
            self._target.delete_folder(folder)
            self._target.delete_folder(folder.rpartition("/")[0], only_if_empty=True)
            StagedBatch.remove_empty_folders(self._target, runtime.query_id)

    def _read(self, uri: str, schema: StructType) -> DataFrame:
        """Return the rows of files that were written with this schema."""
        partitions = {name.lower() for name in self._partition_by}
        # The files do not have these columns, and csv knows a column by its place.
        fields = sorted(schema.fields, key=lambda field: field.name.lower() in partitions)
        reader = self._started().session.read.format(self._format).schema(StructType(fields))
        rows = reader.options(**self._options.for_spark).load(uri)
        return rows.select(*map(quoted, schema.names))

    def _add_to_manifest(self, batch_id: int, files: Sequence[str]) -> None:
        listed = []
        for path in files:
            entry = self._target.entry(path)
            if entry is None:
                raise CheckpointError(
                    f"{self._target.uri}/{path} has been removed by somebody while it was written",
                    path,
                )
            listed.append(
                ManifestFile(
                    self._target.file_uri(path),
                    entry.size,
                    entry.modified_ms,
                    self._target.block_size,
                    self._target.replication,
                )
            )
        fault_point("sink.before-commit")
        self._manifest.add(batch_id, listed)

    def _started(self) -> SinkRuntime:
        if self._runtime is None:
            raise IllegalStateError(f"{self.description()} has not started")
        return self._runtime

    def _require_unclaimed(self, runtime: SinkRuntime) -> None:
        """Look once more before the first batch of this run: another query may have begun here since."""
        owner = self._manifest.owner()
        if owner is not None and owner.get("queryId") != runtime.query_id:
            raise self._somebody_else(f"it has the batches of {_named(owner)}")

    def _claim(self, runtime: SinkRuntime) -> None:
        """Say whose directory it is, once: after a batch, because the manifest has room for one query."""
        if not self._claimed and self._manifest.owner() is None:
            self._manifest.claim(runtime.query_id, runtime.query_name)
        self._claimed = True

    def _require_own(self, runtime: SinkRuntime) -> None:
        """IF there is a manifest with batches: it is continued by the query that has written it, which is
        the one whose checkpoint has planned all of these batches. Spark would leave out, without a word,
        the batches of any other query until their numbers are higher than those in the manifest.

        ELSE: nobody else's files may be there, because the first manifest would hide them from Spark's
        readers. What is there while the first batch of the query is unfinished is left of that.
        """
        latest = self._manifest.latest
        planned = _numbers(runtime.checkpoint.list("offsets"))
        committed = _numbers(runtime.checkpoint.list("commits"))
        if latest is None:
            is_first = planned == [0] and not committed
            if not self._options.allow_foreign_files and not is_first:
                self._require_no_files(runtime.checkpoint.uri)
            self._require_unclaimed(runtime)
            self._require_complete(committed)
            return
        self._require_unclaimed(runtime)
        if not planned:
            raise self._somebody_else(
                f"it has the batches of another query up to {latest}, and this query is new "
                f"({runtime.checkpoint.uri} has no batches)"
            )
        if max(planned) < latest:
            raise self._somebody_else(
                f"it has batches up to {latest}, and the checkpoint {runtime.checkpoint.uri} has planned "
                f"only those up to {max(planned)}"
            )
        self._require_complete(committed)
        if self._manifest.owner() is not None:  # this query
            self._manifest.sweep()

    def _require_complete(self, committed: Sequence[int]) -> None:
        allow = self._options.allow_missing_batches
        self._manifest.require_complete(None if allow else max(committed, default=None))

    def _require_no_files(self, checkpoint: str) -> None:
        """Refuse files of somebody else. The checkpoint of the query itself may be among its output."""
        own = self._target.holds(checkpoint)
        for found in self._target.walk():
            if own is not None and _is_in_checkpoint(found.path, own):
                continue
            raise CheckpointError(
                f"{self._target.uri} has files that no streaming query has written, such as {found.path}: "
                "Spark would not read them any more once a query writes there. Write to an empty "
                "directory, or set the option allowForeignFiles to true if that is what you want.",
                self._target.uri,
            )

    def _somebody_else(self, finding: str) -> CheckpointError:
        return CheckpointError(
            f"cannot write to {self._target.uri}: {finding}. Start the query with the checkpoint that it was "
            "begun with, or write to another directory.",
            self._target.uri,
        )


def _is_in_checkpoint(path: str, checkpoint: str) -> bool:
    """Return True for a file of the checkpoint at that path; if it is empty, both are in one folder."""
    if checkpoint:
        return path.startswith(f"{checkpoint}/")
    return path.partition("/")[0] in (OWNER, "metadata", "plan", *WRITTEN_FOLDERS)


def schema_of(runtime: SinkRuntime) -> StructType:
    return StructType.fromJson(json.loads(runtime.schema_json))


def _numbers(names: Sequence[str]) -> list[int]:
    return [int(name) for name in names if name.isdigit()]


def _named(owner: Mapping[str, object]) -> str:
    name = owner.get("queryName")
    return f"the query {owner.get('queryId')}" + (f" ({name})" if name else "")


def check_columns(format: str, schema: StructType, partition_by: Sequence[str]) -> None:
    """Refuse at start what Spark's writer would refuse in the first batch."""
    columns = {field.name.lower(): field for field in schema.fields}
    for name in partition_by:
        if name.lower() not in columns:
            raise SinkError(
                f"partitionBy({name!r}): there is no such column, only {', '.join(schema.names)}"
            )
    partitions = {name.lower() for name in partition_by}
    data = [field for name, field in columns.items() if name not in partitions]
    if not data:
        raise SinkError(
            "partitionBy names every column: nothing would be left to write into files"
        ).like_spark("ALL_PARTITION_COLUMNS_NOT_ALLOWED")
    if format.lower() == "text" and [type(field.dataType) for field in data] != [StringType]:
        found = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in data)
        raise SinkError(
            f"the text format writes one string column, and this query has {found}: make one of them, such "
            "as df.select(to_json(struct('*')))"
        )
