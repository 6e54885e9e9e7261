#!/bin/sh
# Fetches Apache Kafka with Maven, for the tests of the Kafka connectors and for make kafka.
# Its jars go to the user's cache folder, once; the tests start the broker themselves, on free ports.
set -eu
cd "$(dirname "$0")"

version=$(sed -n 's:.*<version>\([0-9.]*\)</version>.*:\1:p' kafka/pom.xml | sed -n 2p)
jars="${XDG_CACHE_HOME:-$HOME/.cache}/tidemill/kafka-$version"
if [ -e "$jars/complete" ]; then exit 0; fi

if ! command -v mvn >/dev/null; then
  if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "tidemill: the tests need a Kafka broker, and Maven to fetch it: install it (Debian, Ubuntu:" \
      "apt-get install maven; macOS: brew install maven)." >&2
    exit 1
  fi
  echo "tidemill: maven is missing, installing it with apt-get" >&2
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update >/dev/null || true
  apt-get -qq install --yes --no-install-recommends maven >/dev/null
fi

echo "tidemill: fetching Kafka $version into $jars" >&2
rm -rf "$jars"
mkdir -p "$jars"
mvn --batch-mode --quiet --file kafka/pom.xml dependency:copy-dependencies \
  -DincludeScope=runtime -DoutputDirectory="$jars" -Dmdep.useBaseVersion=true >&2
touch "$jars/complete"
