#!/bin/sh
# Rewrites requirements.lock: the exact version of every package that Tidemill, its extras and its tests
# use. Needs uv (pip install uv). Names no package index: pip uses the one it is configured for.
set -eu
cd "$(dirname "$0")/.."
printf 'pyspark==4.3.0\nsetuptools>=77\n' |
  uv pip compile --quiet --universal --python-version 3.11 --all-extras \
    --no-emit-index-url --no-annotate --no-header pyproject.toml - --output-file requirements.lock
sed -i '1i # Exact versions, made by tools/lock.sh. pip install -c requirements.lock -e .[dev]' requirements.lock
