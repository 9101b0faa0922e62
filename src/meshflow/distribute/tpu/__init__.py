"""TPUs: the `system` of cores, the `resolver` that finds it, and the `strategy`."""
