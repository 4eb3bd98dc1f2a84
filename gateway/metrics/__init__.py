"""From traces to Prometheus: the catalogue (data), the observer that counts, and the exposition."""
