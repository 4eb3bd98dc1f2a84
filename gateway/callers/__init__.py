"""Who asks, and what they may do: keys, their files, and the one check of them. Knows no transport and no endpoint."""
