"""All errors that the gateway reports, as one tree; each has a stable ``kind`` and says whether a retry can help.

Raised anywhere in the gateway. ``gateway/http/problems.py`` turns them into HTTP responses. Adapters translate foreign
exceptions into these with ``raise … from``. Public: ``deploy`` may import it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final


class GatewayError(Exception):
    """Base of every error below.

    ``kind`` is the machine-readable name that appears as ``code`` in answers and as ``outcome``/``reason`` in metrics;
    ``hint`` says what the reader can do about it.
    """

    kind: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    """HTTP status."""
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, because: str = "", hint: str = "", retry_after: float | None = None) -> None:
        """``because``: the reason of a refusal, in one word for programs; empty if the kind says enough."""
        self.message = _as_utf8(message)
        self.hint = _as_utf8(hint)
        super().__init__(self.message)
        self.because = because
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
    status = 400


class MalformedRequest(RequestError):
    """The gateway received bytes that are not valid HTTP/1.1: check the client or proxy that sent them."""

    kind = "malformed_request"


class HeadTooLarge(RequestError):
    """The request line and headers exceed the limit on bytes or lines: send fewer or shorter headers."""

    kind = "head_too_large"
    status = 431


class MalformedBody(RequestError):
    """The gateway cannot decode the body (invalid JSON, UTF-8 or gzip, or cut short): correct the body."""

    kind = "malformed_body"


class PayloadTooLarge(RequestError):
    """The body, compressed or unpacked, exceeds the limit on bytes or values: send less in one request."""

    kind = "payload_too_large"
    status = 413


class UnsupportedMedia(RequestError):
    """The endpoint does not accept this content type or content encoding: correct it as `hint` says."""

    kind = "unsupported_media"
    status = 415


class MethodNotAllowed(RequestError):
    """The path does not support this HTTP method: use the one that `hint` names."""

    kind = "method_not_allowed"
    status = 405

    def __init__(self, message: str, *, allow: str = "", hint: str = "") -> None:
        """``allow``: the method that the path supports."""
        super().__init__(message, hint=hint or f"use {allow}")
        self.allow = allow


class BodyTimeout(RequestError):
    """The body did not arrive in time: send it faster, or send less."""

    kind = "body_timeout"
    status = 408


class HeadTimeout(RequestError):
    """The request line and headers did not arrive in time: send them faster, in a new connection."""

    kind = "head_timeout"
    status = 408


class NotAuthenticated(RequestError):
    """The credentials are missing or not valid, as `x-refused-because` says: send valid ones."""

    kind = "unauthenticated"
    status = 401


class NotPermitted(RequestError):
    """The caller lacks a right, which `x-refused-because` names: ask the operator for it."""

    kind = "permission_denied"
    status = 403


class QuotaExceeded(RequestError):
    """The caller's tenant has used up the quota that `x-refused-because` names: retry after `Retry-After` seconds."""

    kind = "quota_exceeded"
    status = 429
    retryable = True


class InputRefused(RequestError):
    """The task or the hook refused well-formed input: correct what the message names."""

    kind = "input_refused"
    status = 422


class ContextLengthExceeded(InputRefused):
    """The input has more tokens than the model reads, and was not to be cut: shorten it, or let it be cut."""

    kind = "context_length_exceeded"


class EndpointNotFound(RequestError):
    """No configuration names this endpoint: check the name in the URL."""

    kind = "endpoint_not_found"
    status = 404


class VersionNotFound(RequestError):
    """The endpoint has no such version: call one that exists, or omit the version."""

    kind = "version_not_found"
    status = 404


class ClientGone(GatewayError):
    """The caller disconnected before the answer was ready, so only metrics and logs show this error."""

    kind = "client_gone"
    status = 499


class Overloaded(GatewayError):
    """The gateway has as much work as it may hold: retry after `Retry-After` seconds."""

    kind = "overloaded"
    status = 429
    retryable = True


class Unavailable(GatewayError):
    """Nothing can serve the request at the moment: retry after `Retry-After` seconds."""

    kind = "unavailable"
    status = 503
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
    status = 504
    retryable = True


class BackendGarbage(GatewayError):
    """Triton's answer has wrong shapes or names, or numbers that are not finite: report it to the operator."""

    kind = "backend_garbage"
    status = 502


class BackendRefused(GatewayError):
    """Triton refused the tensors, because their names, types or shapes do not match the loaded model: correct them."""

    kind = "backend_refused"
    status = 422


class ModelFailed(BackendRefused):
    """The model raised an error, or refused tensors that the gateway made: report it to the operator."""

    kind = "model_failed"
    status = 502


class InternalError(GatewayError):
    """The gateway has a bug: report the request id to the operator."""

    kind = "internal"


class HookFailed(GatewayError):
    """The endpoint's `Preprocess` code raised an error: report it to the owner of the endpoint."""

    kind = "hook_failed"


class ControlError(GatewayError):
    """A configuration or registry error. It ends as the outcome of a reconciliation, or answers operators."""

    kind = "control"


class SpecFault(ControlError):
    """One entry of the serving Task cannot be served; the other entries are not affected."""

    kind = "spec_fault"


class RegistryUnavailable(ControlError):
    """The ClearML API or file store does not answer; the gateway retries."""

    kind = "registry_unavailable"
    status = 503
    retryable = True


class RegistryRefused(ControlError):
    """The ClearML API refused a call: wrong credentials, or an unknown Task or model."""

    kind = "registry_refused"
    status = 502


class ArtifactCorrupt(ControlError):
    """A downloaded file does not match its recorded hash, or an archive is broken or unsafe; the gateway retries."""

    kind = "artifact_corrupt"
    retryable = True


class AnswersDisagree(ControlError):
    """A new version answers the samples of its bundle differently than recorded."""

    kind = "answers_disagree"


class ContentChanged(ControlError):
    """Another upload has overwritten the file of a model since it was first seen; ``found`` is the hash of its file."""

    kind = "content_changed"

    def __init__(self, message: str, *, hint: str = "", found: str = "") -> None:
        super().__init__(message, hint=hint)
        self.found = found


def _tree(error: type[GatewayError]) -> Iterator[type[GatewayError]]:
    yield error
    for one in error.__subclasses__():
        yield from _tree(one)


STATUS: Final = {error.kind: error.status for error in sorted(_tree(GatewayError), key=lambda error: error.status)}
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
