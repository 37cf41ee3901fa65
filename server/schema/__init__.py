"""Request bodies, one file per family of endpoints; pydantic lives here and in the settings."""
