"""A deterministic engine with tunable speed, acceptance and failures.

It is part of the product: the gateway's tests run on it, and it measures the gateway without a
model (`specgate serve --engine fake`).
"""
