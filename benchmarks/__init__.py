"""The harness behind `specgate bench`: workloads, peers, measurements and their statistics."""
