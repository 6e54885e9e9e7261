#!/bin/sh
# Makes the peer of the Kafka benchmarks: PySpark in an environment of its own, and Spark's Kafka connector.
# Both go to the user's cache folder, once (half a gigabyte). There is no connector for the PySpark that
# Tidemill runs on, so the peer is the release before.
set -eu
cd "$(dirname "$0")"

version=4.2.0
peer="${XDG_CACHE_HOME:-$HOME/.cache}/tidemill/spark-kafka-$version"
if [ -e "$peer/complete" ]; then exit 0; fi

if ! command -v mvn >/dev/null; then
  echo "tidemill: Maven is missing, and fetches Spark's Kafka connector: sh tools/get_kafka.sh installs it" >&2
  exit 1
fi

echo "tidemill: fetching PySpark $version and its Kafka connector into $peer" >&2
rm -rf "$peer"
mkdir -p "$peer/jars"
"${PYTHON:-python3}" -m venv "$peer/venv"
"$peer/venv/bin/python" -m pip install --quiet "pyspark==$version" "confluent-kafka>=2.6" >&2
mvn --batch-mode --quiet --file spark-kafka/pom.xml dependency:copy-dependencies \
  -DincludeScope=runtime -DoutputDirectory="$peer/jars" >&2
touch "$peer/complete"
