#!/bin/sh
# Creates .venv with the locked versions of all dependencies. make runs it; it needs Python 3.11 or newer.
set -eu
cd "$(dirname "$0")/.."

fail() {
  echo "tidemill: $1" >&2
  exit 1
}

is_good() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

python=""
for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
  if command -v "$candidate" >/dev/null 2>&1 && is_good "$candidate"; then
    python=$candidate
    break
  fi
done
[ -n "$python" ] || fail "Python 3.11 or newer is needed and '${PYTHON:-python3}' is $(
  "${PYTHON:-python3}" -c 'import sys; print(sys.version.split()[0])' 2>/dev/null || echo missing
): install it (Debian, Ubuntu: apt-get install python3 python3-venv) or name one with make PYTHON=/path/to/python3."

"$python" -c 'import venv, ensurepip' 2>/dev/null ||
  fail "$python cannot make virtual environments: install its venv module (Debian, Ubuntu: apt-get install python3-venv)."

# Recreate the incomplete environment of an interrupted run; only update a complete one.
is_good .venv/bin/python || { rm -rf .venv && "$python" -m venv .venv; }
echo "tidemill: installing the locked dependencies into .venv" >&2
.venv/bin/python -m pip install --quiet --disable-pip-version-check -c requirements.lock setuptools
.venv/bin/python -m pip install --quiet --disable-pip-version-check -c requirements.lock --no-build-isolation -e '.[dev]'
cp requirements.lock .venv/installed.lock
