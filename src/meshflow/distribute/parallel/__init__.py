"""Models larger than a device: what is sent between devices so that each holds a part."""
