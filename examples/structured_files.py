"""JSON files in, Parquet files out, every row exactly once, whatever happens in between.

    python examples/structured_files.py incoming clicks checkpoint

Move files with lines such as ``{"user": "ann", "page": "/"}`` into ``incoming``. Kill the program in any way
you like and start it again with the same command: ``spark.read.parquet("clicks")`` has each row once. Lines
that are not JSON go to ``clicks/valid=false`` as they are.
"""

from __future__ import annotations

import argparse

import tidemill


def main() -> None:
    parser = argparse.ArgumentParser(description="Write JSON files to Parquet, exactly once.")
    parser.add_argument("incoming", help="a directory into which files are moved")
    parser.add_argument("clicks", help="the directory of the Parquet files")
    parser.add_argument("checkpoint", help="where the query remembers what it has read")
    parser.add_argument("--seconds", type=float, help="end by itself after so long")
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
