"""Admission: limits of keys, the queue, and the engine's slots."""
