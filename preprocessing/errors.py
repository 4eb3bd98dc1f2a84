"""Everything this package raises on purpose, one tree; callers map it once at their own boundary (no HTTP here).

    PreprocessingError
    ├── InvalidInput          the request is wrong: says which field, and what to send instead
    ├── InvalidBundle         the model folder cannot be served as it is
    │   ├── InvalidOption     an endpoint option is unknown or out of range
    │   └── UnsupportedTask   the folder is readable, but no head here does its task
    ├── TokenizationFailed    the tokenizer itself broke on a text that had passed every check
    ├── InvalidOutput         the backend answered with tensors that cannot be the answer to this request
    └── UserCodeError         a user's `Preprocess` class
        ├── UserCodeLoadError     it cannot be imported, instantiated or loaded
        ├── UserCodeFailed        a hook raised: a fault of the hook
        └── UserCodeRefused       a hook raised ValueError: it says the request is wrong

Messages are meant for the person who sees them: they name the thing, and `hint` says what to do about it. They never
carry a request's text.
"""

from __future__ import annotations


class PreprocessingError(Exception):
    """The base of all errors of this package; `message` is one sentence, `hint` what to do (or None)."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidInput(PreprocessingError):
    """The request cannot be answered as it was sent; `field` names the part at fault, as a path such as `text[3]`."""

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.field = field


class InvalidBundle(PreprocessingError):
    """The model folder cannot be served: a file is missing, unreadable, or says something impossible."""


class InvalidOption(InvalidBundle):
    """An endpoint option is unknown, has the wrong type, or contradicts the model."""


class UnsupportedTask(InvalidBundle):
    """The folder describes a task that no head here can do."""


class TokenizationFailed(PreprocessingError):
    """The tokenizer raised on texts that had passed every check; a bug in it, not in the request."""


class InvalidOutput(PreprocessingError):
    """The backend's tensors have the wrong names, shape or row count, or are not finite numbers."""


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
    """A hook raised ValueError: the request, not the hook, is wrong. The message is the hook's own."""
