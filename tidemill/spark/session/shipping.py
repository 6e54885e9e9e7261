"""Tidemill's own code on workers that do not have it installed."""

from __future__ import annotations

import os
import zipfile
from typing import TYPE_CHECKING

import tidemill
from tidemill.spark.session.session import use_this_python

if TYPE_CHECKING:
    from pyspark import SparkContext


def ship_package(spark_context: SparkContext) -> None:
    """Send the package to the executors of a cluster, in the driver's version, once per context.

    In local mode workers run in the driver's own Python, which has the package.
    """
    use_this_python(spark_context)
    master = str(spark_context.master)
    if master.startswith("local") and not master.startswith("local-cluster"):
        return
    archive = f"tidemill-{tidemill.__version__}.zip"
    if any(path.endswith(archive) for path in spark_context._python_includes or ()):
        return
    root = os.path.dirname(os.path.abspath(tidemill.__file__))
    # Executors fetch the file from the driver whenever they start: it must stay as long as the context.
    path = os.path.join(spark_context._temp_dir, archive)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for folder, _, names in os.walk(root):
            for name in sorted(names):
                if name.endswith(".py"):
                    full = os.path.join(folder, name)
                    file.write(full, os.path.join("tidemill", os.path.relpath(full, root)))
    spark_context.addPyFile(path)
