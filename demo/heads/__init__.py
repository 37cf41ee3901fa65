"""Heads that draft for the demo target from its hidden states, and how they are trained.

`medusa`, `mlp_speculator` and `eagle` hold one architecture each, as a module whose parameters
have the names of the published checkpoints; `lesson` is what they learn from, `training` the loop
and `acceptance` the figure that counts.
"""
