"""`specgate bench gpu`: what the first hour on a GPU has to show, in one report."""
