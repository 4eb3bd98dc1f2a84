"""All errors that the gateway reports, as one tree; each has a stable ``kind`` and says whether a retry can help.

Raised anywhere in the gateway. ``gateway/http/problems.py`` turns them into HTTP responses, with the statuses of
``STATUS``. Adapters translate foreign exceptions into these with ``raise … from``. Public: ``deploy`` may import it.

::

    GatewayError
    ├── RequestError                the request is at fault; sending it again unchanged fails again
    │   ├── MalformedRequest        not HTTP
    │   ├── AddressTooLong
    │   ├── HeadTooLarge            more bytes or lines before the body than the limit
    │   ├── HeadTimeout             the head came too slowly
    │   ├── MalformedBody           not JSON, not UTF-8, not gzip, truncated
    │   ├── PayloadTooLarge
    │   ├── UnsupportedMedia        content type or content encoding
    │   ├── MethodNotAllowed
    │   ├── BodyTimeout             the body came too slowly
    │   ├── NotAuthenticated        no credentials, or invalid ones
    │   ├── NotPermitted            an authenticated caller lacks a right
    │   ├── QuotaExceeded           the caller's tenant has used up its quota
    │   ├── InputRefused            the task or the hook refused well-formed input
    │   │   └── ContextLengthExceeded  more tokens than the model reads, in input that must not be cut
    │   ├── EndpointNotFound
    │   └── VersionNotFound
    ├── ClientGone                  the caller left before the answer
    ├── Overloaded                  more work than the gateway may hold
    ├── Unavailable                 no capacity at all
    │   ├── Draining
    │   ├── ModelNotReady
    │   └── BackendUnavailable      no Triton answers (``triton.errors.TransportError``: one server does not)
    ├── DeadlineExceeded
    ├── BackendRefused              Triton rejected tensors that a hook or caller made
    │   └── ModelFailed             the model raised, or rejected tensors that the gateway made
    ├── BackendGarbage              Triton's answer is invalid
    ├── HookFailed                  user code raised
    ├── ControlError                configuration and registry; never reaches a request
    │   ├── SpecFault               one entry of the serving Task cannot be served
    │   ├── RegistryUnavailable
    │   ├── RegistryRefused         wrong credentials, unknown Task or model
    │   ├── ArtifactCorrupt         a download that does not match its hash
    │   ├── ContentChanged          a model's file has changed since it was first seen
    │   ├── AnswersDisagree         a version does not answer its own samples as recorded
    │   └── FailsOnRequests         a version fails on a request that the version before it answered
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

    @property
    def sentence(self) -> str:
        """The message and the hint."""
        return f"{self.message}: {self.hint}" if self.hint else self.message


def _as_utf8(text: str) -> str:
    """Replace lone surrogates, which stand for undecodable file names and cannot be encoded in a reply."""
    return text.encode("utf-8", "replace").decode()


class RequestError(GatewayError):
    """The gateway cannot serve the request in this form: correct it before you send it again."""

    kind = "bad_request"


class MalformedRequest(RequestError):
    """The gateway received bytes that are not valid HTTP/1.1: check the client or proxy that sent them."""

    kind = "malformed_request"


class AddressTooLong(RequestError):
    """The URL (path and query) is longer than the gateway accepts: send a shorter one."""

    kind = "address_too_long"


class HeadTooLarge(RequestError):
    """The request line and headers exceed the limit on bytes or lines: send fewer or shorter headers."""

    kind = "head_too_large"


class HeadTimeout(RequestError):
    """The request line and headers did not arrive in time: send them faster, in a new connection."""

    kind = "head_timeout"


class MalformedBody(RequestError):
    """The gateway cannot decode the body (invalid JSON, UTF-8 or gzip, or cut short): correct the body."""

    kind = "malformed_body"


class PayloadTooLarge(RequestError):
    """The body, compressed or unpacked, exceeds the limit on bytes or values: send less in one request."""

    kind = "payload_too_large"


class UnsupportedMedia(RequestError):
    """The endpoint does not accept this content type or content encoding: correct it as `hint` says."""

    kind = "unsupported_media"


class MethodNotAllowed(RequestError):
    """The path does not support this HTTP method: use the one that `hint` names."""

    kind = "method_not_allowed"

    def __init__(self, message: str, *, allow: str = "", hint: str = "") -> None:
        """``allow``: the method that the path supports."""
        super().__init__(message, hint=hint or f"use {allow}")
        self.allow = allow


class BodyTimeout(RequestError):
    """The body did not arrive in time: send it faster, or send less."""

    kind = "body_timeout"


class NotAuthenticated(RequestError):
    """The credentials are missing or not valid, as `x-refused-because` says: send valid ones."""

    kind = "unauthenticated"

    def __init__(self, message: str, *, because: str, hint: str = "", ask_again: str = "") -> None:
        """``ask_again`` names the source of keys that may know the caller by now."""
        super().__init__(message, hint=hint)
        self.because = because
        self.ask_again = ask_again


class NotPermitted(RequestError):
    """The caller lacks a right, which `x-refused-because` names: ask the operator for it."""

    kind = "permission_denied"

    def __init__(self, message: str, *, because: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.because = because


class QuotaExceeded(RequestError):
    """The caller's tenant has used up the quota that `x-refused-because` names: retry after `Retry-After` seconds."""

    kind = "quota_exceeded"
    retryable = True

    def __init__(self, message: str, *, because: str, retry_after: float, hint: str = "") -> None:
        super().__init__(message, hint=hint, retry_after=retry_after)
        self.because = because


class InputRefused(RequestError):
    """The task or the hook refused well-formed input: correct what the message names."""

    kind = "input_refused"


class ContextLengthExceeded(InputRefused):
    """The input has more tokens than the model reads, and was not to be cut: shorten it, or let it be cut."""

    kind = "context_length_exceeded"


class EndpointNotFound(RequestError):
    """No configuration names this endpoint: check the name in the URL."""

    kind = "endpoint_not_found"


class VersionNotFound(RequestError):
    """The endpoint has no such version: call one that exists, or omit the version."""

    kind = "version_not_found"


class ClientGone(GatewayError):
    """The caller disconnected before the answer was ready, so only metrics and logs show this error."""

    kind = "client_gone"


class Overloaded(GatewayError):
    """The gateway has as much work as it may hold: retry after `Retry-After` seconds."""

    kind = "overloaded"
    retryable = True

    def __init__(self, message: str, *, because: str = "", hint: str = "", retry_after: float | None = None) -> None:
        """``because``: what is full."""
        super().__init__(message, hint=hint, retry_after=retry_after)
        self.because = because


class Unavailable(GatewayError):
    """Nothing can serve the request at the moment: retry after `Retry-After` seconds."""

    kind = "unavailable"
    retryable = True


class Draining(Unavailable):
    """This gateway process is shutting down: retry, and another one will answer."""

    kind = "draining"


class ModelNotReady(Unavailable):
    """The serving Task names it, but no version of it can answer yet: retry after `Retry-After` seconds."""

    kind = "model_not_ready"


class BackendUnavailable(Unavailable):
    """The gateway cannot reach Triton, or Triton accepts no work: retry after `Retry-After` seconds."""

    kind = "backend_unavailable"


class DeadlineExceeded(GatewayError):
    """The gateway could not answer before the request's deadline: retry, or raise `x-request-timeout-ms`."""

    kind = "deadline_exceeded"
    retryable = True

    def __init__(self, message: str, *, because: str = "", hint: str = "", retry_after: float | None = None) -> None:
        """``because``: why the request ends before its deadline."""
        super().__init__(message, hint=hint, retry_after=retry_after)
        self.because = because


class BackendRefused(GatewayError):
    """Triton refused the tensors, because their names, types or shapes do not match the loaded model: correct them."""

    kind = "backend_refused"


class ModelFailed(BackendRefused):
    """The model raised an error, or refused tensors that the gateway made: report it to the operator."""

    kind = "model_failed"


class BackendGarbage(GatewayError):
    """Triton's answer has wrong shapes or names, or numbers that are not finite: report it to the operator."""

    kind = "backend_garbage"


class HookFailed(GatewayError):
    """The endpoint's `Preprocess` code raised an error: report it to the owner of the endpoint."""

    kind = "hook_failed"


class ControlError(GatewayError):
    """A configuration or registry error; it ends in the outcome of a reconciliation and never in an answer."""

    kind = "control"


class SpecFault(ControlError):
    """One entry of the serving Task cannot be served; the other entries are not affected."""

    kind = "spec_fault"


class RegistryUnavailable(ControlError):
    """The ClearML API or file store does not answer; the gateway retries."""

    kind = "registry_unavailable"
    retryable = True


class RegistryRefused(ControlError):
    """The ClearML API refused a call: wrong credentials, or an unknown Task or model."""

    kind = "registry_refused"


class ArtifactCorrupt(ControlError):
    """A downloaded file does not match its recorded hash, or an archive is broken or unsafe; the gateway retries."""

    kind = "artifact_corrupt"
    retryable = True


class ContentChanged(ControlError):
    """Another upload has overwritten the file of a model since it was first seen; ``found`` is the hash of its file."""

    kind = "content_changed"

    def __init__(self, message: str, *, hint: str = "", found: str = "") -> None:
        super().__init__(message, hint=hint)
        self.found = found


class AnswersDisagree(ControlError):
    """A new version answers the samples of its bundle differently than recorded."""

    kind = "answers_disagree"


class FailsOnRequests(ControlError):
    """A new version fails on a request that the version before it answered."""

    kind = "fails_on_requests"


class InternalError(GatewayError):
    """The gateway has a bug: report the request id to the operator."""

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
    "context_length_exceeded": 422,
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
    {ClientGone.kind, RequestError.kind, ContextLengthExceeded.kind}
    | {error.kind for error in RequestError.__subclasses__()}
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
