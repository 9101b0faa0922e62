#!/usr/bin/env bash
# Pins the versions that the extras of pyproject.toml resolve to today: requirements.lock for the oldest Python and JAX,
# requirements-newest.lock for the newest JAX. uv is used if it is there; pip takes many minutes.
set -euo pipefail
resolve() { # PYTHON_VERSION JAX
    # Besides the extras: the build dependencies, and oneDNN's headers.
    local requirements=(hatchling editables onednn-devel-cpu-gomp==2023.2.0 "jax$2")
    local uv
    uv=$(command -v uv || command -v .venv/bin/uv || true)
    if [ -n "$uv" ]; then
        printf '%s\n' "${requirements[@]}" |
            "$uv" pip compile --quiet --no-header --no-annotate --python-version "$1" --extra dev pyproject.toml -
        return
    fi
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT # of the subshell
    "$(bash scripts/python.sh "$1")" -m venv "$folder/venv"
    "$folder/venv/bin/python" -m pip install --quiet ".[dev]" "${requirements[@]}"
    "$folder/venv/bin/python" -m pip freeze --exclude meshflow-tf
}
write() { # FILE PYTHON_VERSION JAX
    lines=$(resolve "$2" "$3")
    {
        echo "# The versions that are tested with Python $2 or newer; made by scripts/lock.sh."
        echo "$lines" | sed -E "s/^(onednn.*)/\\1; sys_platform == 'linux' and platform_machine == 'x86_64'/"
    } > "$1"
}
write requirements.lock 3.11 "==0.10.*"
write requirements-newest.lock 3.12 ">=0.10"
