"""The programs of the peers: servers and hooks as their own documentation has them."""
