"""Between the schema and the engine: what a request means, and the shape of its answer."""
