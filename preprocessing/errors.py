"""All errors that this package raises on purpose. Callers map them at their own boundary; there is no HTTP here.

    PreprocessingError
    ├── InvalidInput          the request is invalid: names the field, and what to send instead
    │   └── TooLong           it has more tokens than the model reads, and must not be cut
    ├── InvalidBundle         the model folder cannot be served
    │   ├── InvalidOption     an endpoint option is unknown or out of range
    │   └── UnsupportedTask   the folder is readable, but no head supports its task
    ├── TokenizationFailed    the tokenizer failed on a text that passed all checks
    ├── InvalidOutput         the backend's tensors cannot be the answer to this request
    └── UserCodeError         a user's `Preprocess` class is at fault
        ├── UserCodeLoadError     it cannot be imported, instantiated or loaded
        ├── UserCodeFailed        a hook raised an exception: the hook is at fault
        └── UserCodeRefused       a hook raised ValueError: the request is invalid

Messages are for the person who sees them: they name the object, and `hint` says what to do. They never contain a
request's text.
"""

from __future__ import annotations


class PreprocessingError(Exception):
    """Base of all errors of this package; `message` is one sentence, `hint` says what to do (or is None)."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidInput(PreprocessingError):
    """The request cannot be answered; `field` is the path of the invalid part, such as `text[3]`."""

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.field = field


class TooLong(InvalidInput):
    """The request has more tokens than the model reads, and must not be cut."""


class InvalidBundle(PreprocessingError):
    """The model folder cannot be served: a file is missing, unreadable or contradictory."""


class InvalidOption(InvalidBundle):
    """An endpoint option is unknown, has the wrong type, or contradicts the model."""


class UnsupportedTask(InvalidBundle):
    """No head supports the folder's task."""


class TokenizationFailed(PreprocessingError):
    """The tokenizer raised on texts that passed all checks: a bug in it, not in the request."""


class InvalidOutput(PreprocessingError):
    """The backend's tensors have wrong names, shapes or row counts, or hold numbers that are not finite."""


class UserCodeError(PreprocessingError):
    """A user's `Preprocess` class is at fault; `stage` is `import`, `load`, `preprocess`, `process`, `postprocess` or
    `unload`.
    """

    def __init__(self, message: str, *, stage: str, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.stage = stage
        self.where = where


class UserCodeLoadError(UserCodeError):
    """The class could not be imported, instantiated or loaded; `where` is the file and line in the user's code."""


class UserCodeFailed(UserCodeError):
    """A hook raised something other than ValueError; `original` is that exception."""

    def __init__(self, message: str, *, stage: str, original: BaseException, where: str | None = None) -> None:
        super().__init__(message, stage=stage, where=where)
        self.original = original


class UserCodeRefused(UserCodeError):
    """A hook raised ValueError: the request is invalid, not the hook. The message is the hook's own."""
