"""Kafka's bytes: frames, headers, single fields, splices. Pure; knows nothing of quotas or sockets."""
