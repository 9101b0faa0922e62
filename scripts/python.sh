#!/usr/bin/env bash
# Prints the path of a Python interpreter of at least the given version, the oldest that fits; fails when there is none.
# Usage: python.sh VERSION
set -euo pipefail
wanted=${1#3.}
# The shims of pyenv fail for versions that are not selected, so its interpreters are tried directly, too.
candidates=(python3 python)
for minor in $(seq "$wanted" 20); do
    candidates+=("python3.$minor")
    for path in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"3.$minor".*/bin/python; do
        candidates+=("$path")
    done
done
for candidate in "${candidates[@]}"; do
    path=$(command -v "$candidate" 2>/dev/null) || continue
    if "$path" -c "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, $wanted))" >/dev/null 2>&1; then
        echo "$path"
        exit 0
    fi
done
echo "Meshflow needs Python 3.$wanted or newer, and none is on the PATH." >&2
exit 1
