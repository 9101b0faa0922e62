"""`next(iterator)` in traced functions: elements are captured before a call, or requested by
callbacks.
"""
