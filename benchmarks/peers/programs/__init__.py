"""The programs of the peers: servers and hooks as in their own documentation."""
