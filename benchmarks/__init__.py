"""The harness of `specgate bench`: workloads, measured systems, measurements and statistics."""
