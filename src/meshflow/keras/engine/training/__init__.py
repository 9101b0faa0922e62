"""`compile` and `fit`: steps, data, losses and metrics, interrupts, resuming."""
