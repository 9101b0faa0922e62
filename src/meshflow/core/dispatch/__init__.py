"""How an op runs: operands converted, results known early or probed, composite tensors taken apart."""
