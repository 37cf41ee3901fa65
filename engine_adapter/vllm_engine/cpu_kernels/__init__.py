"""Twins for CPUs of the Triton kernels that a step of vLLM's model runner V2 launches.

Triton has no backend for CPUs, but for a build that PyPI does not have, and its interpreter takes a
hundred times as long. A twin gets the kernel's own arguments, as tensors where the kernel gets
addresses, and writes the same results. `patches/v2_kernels.py` puts each in its kernel's place. No
module here imports vLLM; the tests compare each twin with the kernel in the interpreter.
"""
