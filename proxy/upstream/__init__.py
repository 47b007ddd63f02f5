"""The way to the nodes: connecting, names, credentials, which port stands for which node."""
