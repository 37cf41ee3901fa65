"""The fleet: several servers, its *replicas*, that should have one method and the same policies.

`desired` is that state and its order, `member` the part of each replica, `coordinator` a switch of
all. `http_fleet` reaches replicas by URL; `follower` and `peers` find the state after an absence.
"""
