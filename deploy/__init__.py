"""Everything around the gateway: rooms by where their code runs. docs/architecture.md has the map of them."""
