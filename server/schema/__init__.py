"""Request and response bodies, one module per family of endpoints, as pydantic models."""
