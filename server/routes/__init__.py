"""HTTP routes, one file per family; each has a `router`. A route passes a body on and responds."""
