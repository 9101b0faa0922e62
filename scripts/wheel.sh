#!/usr/bin/env bash
# Builds the wheel of meshflow-as-tensorflow, the source distribution and, from that, two wheels for every Python: one with the CPU kernels for x86-64 Linux, and a
# pure one for other platforms, where XLA computes everything.
# Usage: wheel.sh PYTHON FOLDER
set -euo pipefail
python=$1
folder=$2
raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT
mkdir "$raw/source"
"$python" -m build --sdist --no-isolation --outdir "$raw" .
tar -xzf "$raw"/meshflow_tf-*.tar.gz --strip-components=1 -C "$raw/source"
# As it is built for who installs the source: apart from this environment.
"$python" -m build --wheel --installer uv --outdir "$raw/built" "$raw/source"
case $(ls "$raw/built") in
*-any.whl)
    echo "No kernels were built: pip wheel -v --no-deps . says why." >&2
    exit 1
    ;;
esac
# oneDNN lies in the wheel already; GNU OpenMP is put beside it, and the tag says which glibc it needs.
programs=$(cd "$(dirname "$python")" && pwd)
PATH=$programs:$PATH "$python" -m auditwheel repair --wheel-dir "$raw/checked" "$raw"/built/*.whl
mkdir -p "$folder"
MESHFLOW_PURE_WHEEL=1 "$python" -m build --wheel --no-isolation --skip-dependency-check --outdir "$raw/pure" "$raw/source"
# The ranges of versions that the wheels work with; the pure one needs the glibc of jaxlib's wheel.
"$python" - "$raw"/checked/*.whl "$raw"/pure/*-any.whl <<'PROGRAM'
import email, importlib.metadata, os, re, sys, zipfile

jaxlib = importlib.metadata.distribution("jaxlib").read_text("WHEEL")
for path in sys.argv[1:]:
    with zipfile.ZipFile(path) as wheel:
        # The import shims contain metadata of other packages.
        (name,) = (n for n in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
        metadata = email.message_from_bytes(wheel.read(name))
    found = dict(re.findall(r"^(jaxlib|jax)(\S+)$", "\n".join(metadata.get_all("Requires-Dist")), re.M))
    glibc = re.search(r"manylinux_(\d+)_(\d+)", path) or re.search(r"manylinux_(\d+)_(\d+)", jaxlib)
    needed = f", glibc >={glibc[1]}.{glibc[2]} on Linux" if glibc else ""
    print(f"{os.path.basename(path)}: Python {metadata['Requires-Python']}, jax{found['jax']}, jaxlib{found['jaxlib']}{needed}")
PROGRAM
"$python" -m build --wheel --no-isolation --outdir "$folder" "$(dirname "$0")/../packaging/as_tensorflow"
mv "$raw"/meshflow_tf-*.tar.gz "$raw"/checked/*.whl "$raw"/pure/*-any.whl "$folder"
