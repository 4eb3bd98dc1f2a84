"""Request forms people already know, translated to and from the endpoints' own: pure, no HTTP and no gRPC here."""
