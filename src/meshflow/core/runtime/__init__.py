"""What the process knows before there are values: devices, transfers, scopes and modes, names, errors."""
