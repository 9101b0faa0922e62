#!/usr/bin/env bash
# Pins what the extras of pyproject.toml resolve to today, for the oldest Python; uses uv when it is there (pip takes many minutes).
set -euo pipefail
pinned() { # what hatch builds with, and oneDNN's headers, beside the extras
    printf '%s\n' hatchling editables onednn-devel-cpu-gomp==2023.2.0
}
resolved() {
    local uv
    uv=$(command -v uv || command -v .venv/bin/uv || true)
    if [ -n "$uv" ]; then
        pinned | "$uv" pip compile --quiet --no-header --no-annotate --python-version 3.11 --extra dev pyproject.toml -
        return
    fi
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT # of the subshell
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/python" -m pip install --quiet ".[dev]" $(pinned)
    "$folder/venv/bin/python" -m pip freeze --exclude meshflow
}
lines=$(resolved)
{
    echo "# What was tested; made by scripts/lock.sh."
    echo "$lines" | sed -E "s/^(onednn.*)/\\1; sys_platform == 'linux' and platform_machine == 'x86_64'/"
} > requirements.lock
