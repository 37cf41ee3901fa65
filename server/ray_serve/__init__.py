"""Specgate as a deployment of Ray Serve, whose replicas are one fleet.

`deployment` is what Serve runs, and alone imports Ray. `fleet` is a replica's part in the fleet,
and the others as it reaches them; `routes` are the routes that mean all of them.
"""
