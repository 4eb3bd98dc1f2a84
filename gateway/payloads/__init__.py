"""The payload log: stores a sample of requests and answers for later use.

It is off unless ``TRITON_GATEWAY_PAYLOAD_LOG`` names endpoints. ``log`` listens to finished requests and queues a
sample of them for a thread of its own, which writes them to files (``files``). Created by ``app``, called by the data
plane. It must never delay a request: if the queue is full, records are dropped and counted.
"""
