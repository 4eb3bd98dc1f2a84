"""The access key, secret key and token secret of one control plane, stored in its state directory.

They are generated on the first start with mode 0600 and never logged. `server` calls it, and so does code that starts
clients (`environment`). It never reads or writes a clearml.conf.
"""

import json
import secrets
import string
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from deploy.tools.errors import DeployError
from deploy.tools.folders import create_file
from gateway import durable

FILE_NAME = "credentials.json"
MIN_KEY = 16

_ALPHABET = string.ascii_uppercase + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Everything secret. The representation shows no secret."""

    access_key: str
    secret_key: str = field(repr=False)
    token_secret: str = field(repr=False)
    user: str = "triton-gateway"
    company: str = "d1bd92a3b039400cbafc60a7a5b1e52b"

    @classmethod
    def generate(cls) -> "Credentials":
        """Fresh random keys in ClearML's format (20 and 50 characters)."""
        return cls(
            access_key="".join(secrets.choice(_ALPHABET) for _ in range(20)),
            secret_key=secrets.token_urlsafe(40)[:50],
            token_secret=secrets.token_urlsafe(48),
        )

    @classmethod
    def load(cls, state_dir: Path) -> "Credentials":
        """The credentials of `state_dir`.

        Raises:
            FileNotFoundError: no control plane has been started there yet.
            DeployError: the file is damaged.
        """
        path = state_dir / FILE_NAME
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as exc:
            raise DeployError(
                f"{path} is not a credentials file",
                hint="remove it to have new keys generated (clients then need the new ones)",
            ) from exc

    @classmethod
    def load_or_create(cls, state_dir: Path, *, access_key: str = "", secret_key: str = "") -> "Credentials":
        """The credentials of `state_dir`, generated on the first call. Two processes at once end up with the same ones.

        Keys that are given (those of a Secret of the cluster) replace its own; tokens stay valid.

        Raises:
            DeployError: a given key is missing or too short, or the file is damaged.
            OSError: the directory cannot be written.
        """
        if (access_key or secret_key) and min(len(access_key), len(secret_key)) < MIN_KEY:
            raise DeployError(f"give access key and secret key together, each with at least {MIN_KEY} characters")
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        create_file(state_dir / FILE_NAME, lambda: json.dumps(asdict(cls.generate()), indent=1))
        kept = cls.load(state_dir)
        if access_key in ("", kept.access_key) and secret_key in ("", kept.secret_key):
            return kept
        wanted = replace(kept, access_key=access_key, secret_key=secret_key)
        durable.replace(state_dir / FILE_NAME, json.dumps(asdict(wanted), indent=1))
        return wanted


def client_config(credentials: Credentials, base_url: str) -> str:
    """The clearml.conf that points the clearml SDK and the clearml-serving CLI to the control plane at `base_url`."""
    base = json.dumps(base_url.rstrip("/"))
    files = json.dumps(f"{base_url.rstrip('/')}/files")
    return (
        f"api {{\n  api_server: {base}\n  web_server: {base}\n  files_server: {files}\n  credentials {{\n"
        f"    access_key: {json.dumps(credentials.access_key)}\n    secret_key: {json.dumps(credentials.secret_key)}\n"
        "  }\n}\n"
    )


def environment(credentials: Credentials, base_url: str) -> dict[str, str]:
    """The variables that point the clearml SDK and the clearml-serving CLI to the control plane at `base_url`."""
    base = base_url.rstrip("/")
    return {
        "CLEARML_API_HOST": base,
        "CLEARML_WEB_HOST": base,
        "CLEARML_FILES_HOST": f"{base}/files",
        "CLEARML_API_ACCESS_KEY": credentials.access_key,
        "CLEARML_API_SECRET_KEY": credentials.secret_key,
    }
