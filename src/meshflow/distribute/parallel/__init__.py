"""Models larger than a device: schedules, stages and pipelines."""
