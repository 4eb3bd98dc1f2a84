"""All errors that the gateway reports, as one tree; each has a stable ``kind`` and says whether a retry can help.

Raised anywhere in the gateway. ``gateway/edge/http/problems.py`` turns them into HTTP responses, with the statuses of
``STATUS``. Adapters translate foreign exceptions into these with ``raise … from``. Public: ``deploy`` may import it.

::

    GatewayError
    ├── RequestError                the caller's request; sending it again unchanged fails again
    │   ├── MalformedRequest        not HTTP
    │   ├── AddressTooLong
    │   ├── HeadTooLarge            more bytes or lines before the body than are read
    │   ├── HeadTimeout             the head came too slowly
    │   ├── MalformedBody           not JSON, not UTF-8, not gzip, truncated
    │   ├── PayloadTooLarge
    │   ├── UnsupportedMedia        content type or content encoding
    │   ├── MethodNotAllowed
    │   ├── BodyTimeout             the body came too slowly
    │   ├── NotAuthenticated        nobody is known by the credentials, or there are none
    │   ├── NotPermitted            the caller is known and lacks a right
    │   ├── QuotaExceeded           the caller's tenant has used what it may
    │   ├── InputRefused            the task or the hook refused well-formed input
    │   ├── EndpointNotFound
    │   └── VersionNotFound
    ├── ClientGone                  the caller left before the answer
    ├── Overloaded                  capacity is contended
    ├── Unavailable                 no capacity at all
    │   ├── Draining
    │   ├── ModelNotReady
    │   └── BackendUnavailable      no Triton answers (``triton.errors.TransportError``: one server does not)
    ├── DeadlineExceeded
    ├── BackendRefused              Triton rejected the tensors a hook or caller made
    │   └── ModelFailed             the model raised, or rejected tensors we made ourselves
    ├── BackendGarbage              Triton's answer is invalid
    ├── HookFailed                  user code raised
    ├── ControlError                configuration and registry; never reaches a request
    │   ├── SpecFault               one entry of the serving Task cannot be served
    │   ├── RegistryUnavailable
    │   ├── RegistryRefused         wrong credentials, unknown Task or model
    │   ├── ArtifactCorrupt         a download that does not match its hash
    │   ├── ContentChanged          a model's file is not what it was when it was first seen
    │   ├── AnswersDisagree         a version does not answer its own samples as it should
    │   └── FailsOnRequests         a version fails on a request that the one before it has answered
    └── InternalError               a bug of ours
"""

from __future__ import annotations

from typing import ClassVar, Final


class GatewayError(Exception):
    """Base of every error above.

    ``kind`` is the machine-readable name that appears as ``code`` in answers and as ``outcome``/``reason`` in metrics;
    ``hint`` says what the reader can do about it.
    """

    kind: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False
    because = ""
    """The reason of a refusal, in one word for programs; empty if the kind says enough."""

    def __init__(self, message: str, *, hint: str = "", retry_after: float | None = None) -> None:
        self.message = _as_utf8(message)
        self.hint = _as_utf8(hint)
        super().__init__(self.message)
        self.retry_after = retry_after


def _as_utf8(text: str) -> str:
    """Replace lone surrogates, which stand for undecodable file names and cannot be encoded in a reply."""
    return text.encode("utf-8", "replace").decode()


class RequestError(GatewayError):
    """The caller's request cannot be served as it is."""

    kind = "bad_request"


class MalformedRequest(RequestError):
    """What came is not an HTTP/1.1 request."""

    kind = "malformed_request"


class AddressTooLong(RequestError):
    """The request's address (path and query) is longer than any address here."""

    kind = "address_too_long"


class HeadTooLarge(RequestError):
    """The request's head has more bytes or more lines than are read."""

    kind = "head_too_large"


class HeadTimeout(RequestError):
    """The request's head did not arrive in time."""

    kind = "head_timeout"


class MalformedBody(RequestError):
    """The body cannot be decoded: not JSON, not UTF-8, not gzip, cut short."""

    kind = "malformed_body"


class PayloadTooLarge(RequestError):
    """The body, or what it unpacks to, is larger than the configured limit, or has too many values."""

    kind = "payload_too_large"


class UnsupportedMedia(RequestError):
    """Content type or content encoding this endpoint does not take."""

    kind = "unsupported_media"


class MethodNotAllowed(RequestError):
    """The route exists for another HTTP method."""

    kind = "method_not_allowed"


class BodyTimeout(RequestError):
    """The request body did not arrive within the request's time."""

    kind = "body_timeout"


class NotAuthenticated(RequestError):
    """Nobody is known by the caller's credentials, or there are none; `x-refused-because` says which."""

    kind = "unauthenticated"

    def __init__(self, message: str, *, because: str, hint: str = "", ask_again: str = "") -> None:
        """``ask_again`` names the source of keys that may know the caller by now."""
        super().__init__(message, hint=hint)
        self.because = because
        self.ask_again = ask_again


class NotPermitted(RequestError):
    """The caller is known and may not do this; `x-refused-because` says what it lacks."""

    kind = "permission_denied"

    def __init__(self, message: str, *, because: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.because = because


class QuotaExceeded(RequestError):
    """The caller's tenant has used what it may for now; `x-refused-because` says what of."""

    kind = "quota_exceeded"
    retryable = True

    def __init__(self, message: str, *, because: str, retry_after: float, hint: str = "") -> None:
        super().__init__(message, hint=hint, retry_after=retry_after)
        self.because = because


class InputRefused(RequestError):
    """Well-formed input that the task or the hook refuses."""

    kind = "input_refused"


class EndpointNotFound(RequestError):
    """No such endpoint."""

    kind = "endpoint_not_found"


class VersionNotFound(RequestError):
    """The endpoint exists, this version of it does not."""

    kind = "version_not_found"


class ClientGone(GatewayError):
    """The caller disconnected before the answer was ready; seen in metrics and logs only."""

    kind = "client_gone"


class Overloaded(GatewayError):
    """More work than this gateway may hold: try again after ``retry_after`` seconds."""

    kind = "overloaded"
    retryable = True

    def __init__(self, message: str, *, because: str = "", hint: str = "", retry_after: float | None = None) -> None:
        """``because``: what is full."""
        super().__init__(message, hint=hint, retry_after=retry_after)
        self.because = because


class Unavailable(GatewayError):
    """Nothing here can serve the request at the moment."""

    kind = "unavailable"
    retryable = True


class Draining(Unavailable):
    """This process is shutting down and takes no new requests."""

    kind = "draining"


class ModelNotReady(Unavailable):
    """The endpoint is configured, its model is not (yet) loaded."""

    kind = "model_not_ready"


class BackendUnavailable(Unavailable):
    """Triton cannot be reached or refuses work."""

    kind = "backend_unavailable"


class DeadlineExceeded(GatewayError):
    """The answer was not ready within the request's time, or could not have been."""

    kind = "deadline_exceeded"
    retryable = True

    def __init__(self, message: str, *, because: str = "", hint: str = "", retry_after: float | None = None) -> None:
        """``because``: why the request ends before its deadline."""
        super().__init__(message, hint=hint, retry_after=retry_after)
        self.because = because


class BackendRefused(GatewayError):
    """Triton refused the tensors: names, types or shapes disagree with the loaded model."""

    kind = "backend_refused"


class ModelFailed(BackendRefused):
    """The model raised while it ran, or refused tensors that were made for it: nothing the caller can change."""

    kind = "model_failed"


class BackendGarbage(GatewayError):
    """Triton's answer has the wrong shape, names or non-finite numbers."""

    kind = "backend_garbage"


class HookFailed(GatewayError):
    """The endpoint's ``Preprocess`` code raised."""

    kind = "hook_failed"


class ControlError(GatewayError):
    """Configuration and registry errors; they end in reconcile outcomes, never in an answer."""

    kind = "control"


class SpecFault(ControlError):
    """One entry of the serving Task that cannot be served; the others are not affected."""

    kind = "spec_fault"


class RegistryUnavailable(ControlError):
    """The ClearML API or file store does not answer; retried."""

    kind = "registry_unavailable"
    retryable = True


class RegistryRefused(ControlError):
    """The ClearML API answers and says no: wrong credentials, unknown Task or model."""

    kind = "registry_refused"


class ArtifactCorrupt(ControlError):
    """A downloaded file does not match its recorded hash, or an archive is unsafe or broken."""

    kind = "artifact_corrupt"
    retryable = True


class ContentChanged(ControlError):
    """The file of a model is not the one that was first seen under its id: another upload has overwritten it."""

    kind = "content_changed"


class AnswersDisagree(ControlError):
    """A new version answers the samples of its bundle otherwise than where they were recorded."""

    kind = "answers_disagree"


class FailsOnRequests(ControlError):
    """A new version fails on a request that the one before it has answered."""

    kind = "fails_on_requests"


class InternalError(GatewayError):
    """A bug of ours."""

    kind = "internal"


STATUS: Final[dict[str, int]] = {
    "bad_request": 400,
    "malformed_request": 400,
    "malformed_body": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "endpoint_not_found": 404,
    "version_not_found": 404,
    "method_not_allowed": 405,
    "body_timeout": 408,
    "head_timeout": 408,
    "payload_too_large": 413,
    "address_too_long": 414,
    "unsupported_media": 415,
    "input_refused": 422,
    "backend_refused": 422,
    "quota_exceeded": 429,
    "overloaded": 429,
    "head_too_large": 431,
    "client_gone": 499,
    "internal": 500,
    "hook_failed": 500,
    "control": 500,
    "spec_fault": 500,
    "registry_unavailable": 500,
    "registry_refused": 500,
    "artifact_corrupt": 500,
    "answers_disagree": 500,
    "content_changed": 500,
    "fails_on_requests": 500,
    "backend_garbage": 502,
    "model_failed": 502,
    "unavailable": 503,
    "draining": 503,
    "model_not_ready": 503,
    "backend_unavailable": 503,
    "deadline_exceeded": 504,
}
"""HTTP status by ``kind``. The gRPC edge and the count of a version's failures use it as well."""


OF_CALLERS: Final = frozenset(
    {ClientGone.kind, RequestError.kind, *(error.kind for error in RequestError.__subclasses__())}
)
"""Kinds of errors that callers cause, on every transport."""


def forget_frames(error: BaseException | None) -> None:
    """Remove the tracebacks of ``error`` and of its causes.

    A kept error keeps the frames of its traceback in memory, with their bodies, tensors and the request itself, until
    the garbage collector runs, which is rare here (see ``app``).
    """
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
