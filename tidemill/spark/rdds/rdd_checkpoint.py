"""The files of an RDD that ``checkpoint()`` was called on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from tidemill.spark.files.hadoop_files import HadoopFileSystem, java_reason

if TYPE_CHECKING:
    from pyspark import RDD

logger = logging.getLogger(__name__)


def delete_checkpoint(rdd: RDD[Any]) -> None:
    """Delete the files that Spark has written for ``rdd``, if it has.

    What cannot be deleted is left, with a warning: it is of no use to anybody, and the next start of the
    stream deletes it.
    """
    folder = rdd.getCheckpointFile()
    if folder is None:
        return
    try:
        HadoopFileSystem(rdd.ctx, folder).delete(folder, recursive=True)
    except Py4JError as error:
        logger.warning("the checkpoint of an RDD could not be deleted: %s", java_reason(error))
