"""OpenAI's API between schema and engine: what a body means, and what its response looks like."""
