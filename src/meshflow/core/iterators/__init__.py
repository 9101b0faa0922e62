"""`next(iterator)` in traced functions: elements captured before a call, or fed by callbacks while it runs."""
