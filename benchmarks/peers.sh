#!/usr/bin/env bash
# TensorFlow, Keras and PyTorch in an environment of their own, for comparison.
set -euo pipefail
python3 -m venv .venv-peers
.venv-peers/bin/python -m pip install --quiet torch==2.13.0
.venv-peers/bin/python -m pip install --quiet tensorflow-cpu tf-keras keras jax
