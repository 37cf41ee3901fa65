"""The CPU time of an engine step, beside stock vLLM's, and of Specgate's own code in it."""
