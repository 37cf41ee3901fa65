"""HTTP routes, one file per family; each has a `router`. Thin: schema in, serving, response out."""
