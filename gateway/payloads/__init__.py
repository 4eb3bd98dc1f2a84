"""The payload log: what some callers asked and what they were answered, kept for people who look at it later.

Off unless ``TRITON_GATEWAY_PAYLOAD_LOG`` names endpoints. ``log`` listens to finished requests and hands a sample of
them to a thread of its own; that thread redacts them (``rules``) and writes them to files (``files``) or posts them as
CloudEvents (``events``). Made once by ``app`` (``opening``), called by the data plane. It must never make a request
wait: what the thread cannot take is dropped and counted. Nothing leaves before it was redacted.
"""
