"""Users' code in processes of its own."""
