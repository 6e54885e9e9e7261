#!/bin/sh
# Installs the PostgreSQL server for the tests of the SQL sink, from Debian's packages if it is missing.
# The tests start one of their own, in a temporary folder and on a free port.
set -eu

if command -v postgres >/dev/null || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; then exit 0; fi

if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
  echo "tidemill: the tests need a PostgreSQL server, which is missing: install it (Debian, Ubuntu:" \
    "apt-get install postgresql; macOS: brew install postgresql)." >&2
  exit 1
fi

echo "tidemill: PostgreSQL is missing, installing it with apt-get" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update >/dev/null || true
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Without a cluster that the machine would run all the time.
mkdir -p /etc/postgresql-common
[ -e /etc/postgresql-common/createcluster.conf ] ||
  echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
if ! apt-get -qq install --yes --no-install-recommends postgresql >"$log" 2>&1; then
  echo "tidemill: apt-get failed:" >&2
  tail -5 "$log" >&2
  exit 1
fi
