"""Conversion of models to ONNX files, from the same flat programs as LiteRT's, and ONNX Runtime.

The extra `onnx` installs the packages.
"""

from meshflow.onnx.exporter import convert_to_onnx, export
