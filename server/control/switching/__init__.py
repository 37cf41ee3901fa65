"""The active spec method, the choice for one request, and the switch from one to another."""
