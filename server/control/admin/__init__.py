"""Admin changes while requests are served: proposers, adapters, policies; each leaves a record."""
