"""Specgate as a deployment of Ray Serve, whose replicas change their method as one.

`deployment` is what Serve runs. `fleet` is the one actor that holds the fleet's state and runs its
switches, `remote_replica` is a replica as that actor sees it, and `attendance` is the part of each
replica. Only `deployment` and `actor` import Ray.
"""
