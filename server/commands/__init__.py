"""The commands of `specgate`, one file each."""
