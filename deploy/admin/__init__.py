"""The operator's side: the command line and what its commands do."""
