"""Small things that every room uses: errors, processes, ports, HTTP calls, sections of a serving Task."""
