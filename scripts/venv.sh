#!/usr/bin/env bash
# Makes a virtual environment from a lock file; uses uv if it is there.
# Usage: venv.sh FOLDER LOCK PYTHON_VERSION
set -euo pipefail
venv=$1
lock=$2
python=$(bash scripts/python.sh "$3")
echo "Setting up $venv (once, a few minutes)"
rm -rf "$venv"
# The lock names everything, so nothing else is resolved: oneDNN's headers ask for a second build
# of oneDNN, which nobody needs.
uv=$(command -v uv || command -v .venv/bin/uv || true)
if [ -n "$uv" ]; then
    "$uv" venv --quiet --python "$python" "$venv"
    VIRTUAL_ENV=$venv "$uv" pip install --quiet --no-deps -r "$lock"
    VIRTUAL_ENV=$venv "$uv" pip install --quiet --no-deps --no-build-isolation -e .
else
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$lock"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
fi
