"""The CPU time of a policy's plan."""
