"""Where models and serving Tasks live: the port, the ClearML adapter, and what is kept on disk for when it is down."""
