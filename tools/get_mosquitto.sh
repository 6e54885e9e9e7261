#!/bin/sh
# Installs mosquitto, the MQTT broker for the tests of the MQTT receiver, from Debian's packages if it is missing.
# The tests start it themselves, on a free port, so the package's own service is turned off.
set -eu

# Debian installs it into a folder that is not on most users' PATH.
PATH=$PATH:/usr/sbin:/usr/local/sbin
if command -v mosquitto >/dev/null; then exit 0; fi

if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
  echo "tidemill: the tests need the MQTT broker mosquitto, which is missing: install it (Debian," \
    "Ubuntu: apt-get install mosquitto; macOS: brew install mosquitto)." >&2
  exit 1
fi

echo "tidemill: mosquitto is missing, installing it with apt-get" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update >/dev/null || true
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! apt-get -qq install --yes --no-install-recommends mosquitto >"$log" 2>&1; then
  echo "tidemill: apt-get failed:" >&2
  tail -5 "$log" >&2
  exit 1
fi
if command -v systemctl >/dev/null; then
  systemctl disable --now mosquitto >/dev/null 2>&1 || true
fi
