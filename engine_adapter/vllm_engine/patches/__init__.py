"""Every change to an object of vLLM's. `compat.PATCHES` lists them; each is safe to call twice."""
