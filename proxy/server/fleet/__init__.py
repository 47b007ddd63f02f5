"""The instances of one virtual cluster divide each limit: how claims travel, and the loop that applies them."""
