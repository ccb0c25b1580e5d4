"""What M3 writes down: protobuf values in etcd, storage policies and shard sets as text. Values only, no I/O.

The bottom of the tree, because filters, the registry, relays, the dialect and Spark's executors all read them.
"""
