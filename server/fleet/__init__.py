"""The fleet switch: several servers, the *replicas* of a fleet, change their method as one.

`coordinator` runs a switch over replicas, `member` is the part of each replica, `replica` is the
contract between them. `http_replica` reaches a replica by its URL.
"""
