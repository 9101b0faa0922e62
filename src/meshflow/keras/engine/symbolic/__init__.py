"""What stands for values while a model is built: symbolic tensors, input specs, call signatures."""
