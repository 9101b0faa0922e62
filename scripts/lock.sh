#!/usr/bin/env bash
# Pins what the extras of pyproject.toml resolve to today.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet ".[dev]" hatchling editables
"$folder/venv/bin/python" -m pip install --quiet --no-deps onednn-devel-cpu-gomp==2023.2.0
{
    echo "# What was tested; made by scripts/lock.sh."
    "$folder/venv/bin/python" -m pip freeze --exclude meshflow |
        sed -E "s/^(onednn.*)/\\1; sys_platform == 'linux' and platform_machine == 'x86_64'/"
} > requirements.lock
