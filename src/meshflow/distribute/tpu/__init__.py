"""TPUs: the `system` of cores, the `resolver` that finds it, the `strategy` whose replicas take them."""
