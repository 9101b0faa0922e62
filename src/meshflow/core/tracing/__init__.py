"""Tracing of Python functions into jaxprs, with captures and variable writes; host callbacks; the pass
pipeline.
"""
