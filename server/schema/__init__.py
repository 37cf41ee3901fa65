"""Request bodies, one file per family of endpoints. Pydantic lives here and in the settings alone."""
