"""Routing rules: which requests get which spec method without asking for one."""
