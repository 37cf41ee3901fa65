"""Several engines, each with a copy of the target, that serve as one."""
