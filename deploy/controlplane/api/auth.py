"""`auth.*`: tokens for access keys."""

from collections.abc import Mapping

from deploy.controlplane.api.call import Call, Handler
from deploy.controlplane.envelope import JsonObject
from deploy.controlplane.tokens import Identity, Tokens


class AuthApi:
    """Login. The caller has already been identified, by access keys or by a valid token."""

    def __init__(self, *, tokens: Tokens) -> None:
        self._tokens = tokens

    def endpoints(self) -> Mapping[str, Handler]:
        """Name -> handler."""
        return {"auth.login": self.login, "auth.validate_token": self.validate_token}

    def login(self, call: Call) -> JsonObject:
        """A new token, i.e. a new session, valid for at least `expiration_sec` (30 days when not given)."""
        wanted = call.query.get("expiration_sec") or call.body.get("expiration_sec")
        try:
            lifetime = int(wanted) if wanted else None
        except (TypeError, ValueError, OverflowError):
            lifetime = None
        return {"token": self._issue(call.identity, lifetime)}

    def validate_token(self, call: Call) -> JsonObject:
        """Confirm the token: `app` has already refused callers with an invalid one."""
        return {"valid": True, "msg": "", "identity": {"user": call.identity.user, "company": call.identity.company}}

    def _issue(self, identity: Identity, lifetime_s: int | None) -> str:
        return self._tokens.issue(user=identity.user, company=identity.company, lifetime_s=lifetime_s)
