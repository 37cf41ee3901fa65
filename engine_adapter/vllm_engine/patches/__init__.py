"""Changes to objects of vLLM's: `internals.PATCHES` lists them. Each is safe to call twice."""
