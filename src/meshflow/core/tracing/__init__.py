"""Tracing of Python functions into jaxprs, host callbacks, and the pass pipeline."""
