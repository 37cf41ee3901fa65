"""A deterministic engine with tunable speed, acceptance and failures.

It is shipped: it serves the gateway's tests and measures the gateway alone
(`specgate serve --engine fake`).
"""
