"""From the usage table to what a platform team and finance read."""
