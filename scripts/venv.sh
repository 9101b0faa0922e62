#!/usr/bin/env bash
# Makes the virtual environment from the lock file; uses uv when it is there.
set -euo pipefail
venv=$1
python=""
for candidate in python3 python3.13 python3.12 python3.11 python; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "Meshflow needs Python 3.11 or newer, and none is on the PATH." >&2
    exit 1
fi
echo "Setting up $venv (once, a few minutes)"
rm -rf "$venv"
# The lock names everything, so nothing else is resolved: oneDNN's headers ask for a second build
# of oneDNN, which nobody needs.
if command -v uv >/dev/null; then
    uv venv --quiet --python "$python" "$venv"
    VIRTUAL_ENV=$venv uv pip install --quiet --no-deps -r requirements.lock
    VIRTUAL_ENV=$venv uv pip install --quiet --no-deps --no-build-isolation -e .
else
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
fi
