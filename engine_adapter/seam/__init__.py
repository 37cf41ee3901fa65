"""The seam between the gateway and an engine: interface, plain types, errors. No torch, no HTTP."""
