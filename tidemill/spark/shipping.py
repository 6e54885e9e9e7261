"""Tidemill's own code on workers that do not have it installed."""

from __future__ import annotations

import os
import sys
import zipfile
from typing import TYPE_CHECKING

import tidemill

if TYPE_CHECKING:
    from pyspark import SparkContext


def ship_package(spark_context: SparkContext) -> None:
    """Send the package to the executors of a cluster, in the driver's version, once per context.

    In local mode the workers are of the driver's own Python and need nothing.
    """
    if _is_local(spark_context):
        use_this_python(spark_context)
        return
    archive = f"tidemill-{tidemill.__version__}.zip"
    if any(path.endswith(archive) for path in spark_context._python_includes or ()):
        return
    root = os.path.dirname(os.path.abspath(tidemill.__file__))
    # Executors fetch the file from the driver whenever they start: it stays as long as the context.
    path = os.path.join(spark_context._temp_dir, archive)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for folder, _, names in os.walk(root):
            for name in sorted(names):
                if name.endswith(".py"):
                    full = os.path.join(folder, name)
                    file.write(full, os.path.join("tidemill", os.path.relpath(full, root)))
    spark_context.addPyFile(path)


def use_this_python(spark_context: SparkContext) -> None:
    """Run local workers in the driver's own Python, with the driver's own packages.

    PySpark starts whatever ``python3`` is on the PATH, which is another one in a virtual environment that is
    not activated. What the user has set stays.
    """
    set_by_user = "PYSPARK_PYTHON" in os.environ or spark_context.getConf().contains(
        "spark.pyspark.python"
    )
    if _is_local(spark_context) and not set_by_user:
        spark_context.pythonExec = sys.executable


def _is_local(spark_context: SparkContext) -> bool:
    master = str(spark_context.master)
    return master.startswith("local") and not master.startswith("local-cluster")
