"""JSON files in, Parquet files out, every row exactly once, even through crashes.

    python examples/structured_files.py incoming clicks checkpoint

Move files with lines such as ``{"user": "ann", "page": "/"}`` into ``incoming``. Kill the program in any way
you like and start it again with the same command: ``spark.read.parquet("clicks")`` has each row once. Lines
that are not JSON go to ``clicks/valid=false`` unchanged.
"""

from __future__ import annotations

import argparse

import tidemill


def main() -> None:
    parser = argparse.ArgumentParser(description="Write JSON files to Parquet, exactly once.")
    parser.add_argument("incoming", help="the directory into which you move files")
    parser.add_argument("clicks", help="the directory for the Parquet files")
    parser.add_argument("checkpoint", help="the directory in which the query keeps its position")
    parser.add_argument("--seconds", type=float, help="stop after this many seconds")
    arguments = parser.parse_args()

    spark = tidemill.session("files", master="local[2]", quiet=True)
    clicks = (
        spark.readStream.schema("user string, page string, _corrupt_record string")
        .option("columnNameOfCorruptRecord", "_corrupt_record")
        .json(arguments.incoming)
    )
    query = (
        clicks.selectExpr("*", "_corrupt_record IS NULL AS valid")
        .writeStream.format("parquet")
        .partitionBy("valid")
        .option("checkpointLocation", arguments.checkpoint)
        .start(arguments.clicks)
    )
    query.awaitTermination(arguments.seconds)
    query.stop()


if __name__ == "__main__":
    main()
