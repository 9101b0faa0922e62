"""Staged control flow: branches and loops that tensors control, as XLA operations.

`tf.cond`, `tf.while_loop` and AutoGraph's `if`, `while` and `for` use this package. It traces their
Python functions with `core.tracing.trace`, so that outer tensors and variables become explicit
operands and variable writes become explicit results. It then runs `lax.cond`, `lax.switch`,
`lax.while_loop` or `lax.scan` as *one* op through the dispatcher, so that gradient tapes see all
operands, and performs the writes.

* `structure`: splits nested values into tensors and Python values;
* `merged_operands`: merges the operands and writes of several traced functions;
* `branches`: runs one of several functions;
* `loops`: runs a function repeatedly;
* `dynamic_loop`: `lax.while_loop` with gradients.
"""
