"""Measurements of speed: workloads, measured systems, statistics, and their commands."""
