"""More than one machine: gateways on the nodes of a Ray cluster, their journals brought to the pool node.

Everything that uses Ray is in this package, and Ray is imported inside the functions that need it (extra ``ray``). A
studio on one machine imports nothing of it.
"""
