"""The registered models: what may be loaded, by name and version. Read from the configuration and never from
a client.
"""

from __future__ import annotations

from dlcb.server.errors import NotFound
from dlcb.server.settings import Limits, Model, Settings


class Repository:
    """Registered versions of each name, the newest first."""

    def __init__(self, settings: Settings) -> None:
        self.folder = settings.folder
        self._limits = settings.server.limits
        self._loads = bool(settings.server.keys.admin)
        self._models: dict[str, list[Model]] = {}
        for model in settings.models:
            self._models.setdefault(model.name, []).append(model)
        for versions in self._models.values():
            versions.sort(key=lambda model: version_order(model.version), reverse=True)

    def all(self) -> list[Model]:
        return [model for versions in self._models.values() for model in versions]

    def limits(self, entry: Model) -> Limits:
        """A model's own limits, and the server's where it names none."""
        own = {name: getattr(entry.limits, name) for name in entry.limits.model_fields_set}
        return self._limits.model_copy(update=own)

    def how_to_load(self, name: str) -> str:
        """For whoever finds a model not loaded."""
        if self._loads:
            return f"POST /v2/repository/models/{name}/load with an admin key loads it"
        return "without `load: false` in the configuration it is loaded at the start"

    def has(self, name: str) -> bool:
        return name in self._models

    def versions(self, name: str) -> list[Model]:
        """NotFound when the name is not registered."""
        if name not in self._models:
            raise NotFound(
                f"model '{name}' is not registered; registered are {', '.join(sorted(self._models))}"
            )
        return self._models[name]

    def find(self, name: str, version: str) -> Model:
        """NotFound when the version is not registered."""
        for model in self.versions(name):
            if model.version == version:
                return model
        known = ", ".join(model.version for model in self._models[name])
        raise NotFound(f"model '{name}' has no version '{version}'; registered are {known}")


def version_order(version: str) -> tuple[bool, int, str]:
    """Numbers by value and above names, names by text."""
    return version.isdigit(), int(version) if version.isdigit() else 0, version
