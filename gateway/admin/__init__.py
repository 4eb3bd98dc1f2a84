"""What operators ask over HTTP, by FastAPI: health, metrics, status, the page, the API's document, lineage, feedback.

Called by ``app``, which runs it behind the core of ``gateway/http``. It must never do on the loop what grows with the
number of endpoints.
"""
