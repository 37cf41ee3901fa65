"""Heads that draft for the demo target from its hidden states, and their training.

`medusa`, `mlp_speculator` and `eagle` contain the architectures, as modules with the parameter
names of the published checkpoints. `teacher` computes the target's outputs that heads are trained
on, `training` is the training loop, and `acceptance` computes a head's tokens per decode step.
"""
