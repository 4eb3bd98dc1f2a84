"""`serving.*`: telemetry of newer clearml-serving containers. It is accepted and dropped, because our own metrics
replace it.
"""

from collections.abc import Mapping

from deploy.controlplane.api.call import Call, Handler
from deploy.controlplane.envelope import JsonObject


class ServingApi:
    """Answers `{}` so that no container logs errors."""

    def endpoints(self) -> Mapping[str, Handler]:
        """Name -> handler."""
        return {
            "serving.container_status_report": self.accept,
            "serving.register_container": self.accept,
            "serving.unregister_container": self.accept,
        }

    def accept(self, _: Call) -> JsonObject:
        """Accept and ignore."""
        return {}
