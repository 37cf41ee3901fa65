"""Switches over many servers of this machine."""
