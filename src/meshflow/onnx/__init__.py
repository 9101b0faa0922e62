"""Models as ONNX files, written from the same list of equations as LiteRT's, and run by ONNX Runtime.

The packages are those of the extra `onnx`.
"""

from meshflow.onnx.exporting import export, exported

__all__ = ["export", "exported"]
