"""Replays policies over traces: what every proposer would have drafted, and what was accepted."""
