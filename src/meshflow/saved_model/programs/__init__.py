"""Functions as StableHLO programs: export, verification, and dispatch of loaded functions."""
