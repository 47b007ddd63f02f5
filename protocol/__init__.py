"""Kafka's bytes: frames, headers, single fields, splices. Pure, and knows nothing of quotas or sockets."""
