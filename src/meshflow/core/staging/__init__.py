"""Staged control flow: branches and loops whose course tensors decide, as XLA operations.

`tf.cond`, `tf.while_loop` and AutoGraph's `if`, `while` and `for` all end here. Each traces its
Python functions with `core.tracing.trace`, so that outer tensors and variables become explicit operands
and variable writes become explicit results; runs `lax.cond`, `lax.switch`, `lax.while_loop` or
`lax.scan` as *one* op through the dispatcher, so that gradient tapes see all operands; and then
performs the writes.

* `structure`: nested values taken apart into tensors and Python values;
* `operands`: what the traced functions use and write, united;
* `branches`: one of several functions runs;
* `loops`: a function runs repeatedly;
* `dynamic_loop`: `lax.while_loop` with gradients.
"""
