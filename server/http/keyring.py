"""`Keyring`: the keys in force, and their replacement while the server runs."""

import stat
from pathlib import Path

import structlog

from server.settings.access_settings import AccessSettings
from server.settings.keys import KEY_FILE, KeySet, Role
from server.settings.types import SettingError
from server.telemetry.file_metrics import FileMetrics

log = structlog.get_logger(__name__)


class Keyring:
    """The keys in force. Lives on the event loop.

    Attributes:
        keys: replaced as a whole, so that a request sees the old ones or the new ones.

    Raises:
        SettingError: the keys cannot be read.
    """

    def __init__(self, settings: AccessSettings, metrics: FileMetrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self.keys = settings.keys_at_start
        self._warn_of_readers()

    def api_key_names(self) -> frozenset[str]:
        """The names that routing rules may match now."""
        return self.keys.names(Role.API)

    def is_shared(self) -> bool:
        """Whether there are API keys of several names now."""
        return self.keys.is_shared

    def has_owner(self, owner: str) -> bool:
        """Whether requests may be those of an owner now; see `server.http.auth.key_owner`."""
        if not owner:
            return not self.keys.has(Role.API)
        return owner in self.keys.names(Role.API) | self.keys.names(Role.ADMIN)

    def reload(self) -> bool:
        """Reads the key file again. Returns whether the new keys are in force.

        A file that cannot be used changes nothing, and the log says why. Requests that have been
        authorized continue.
        """
        if self._settings.key_file is None:
            log.info("nothing_to_reload", reason="--key-file is not set")
            return False
        try:
            keys = self._read_again()
        except SettingError as error:
            self._metrics.count_reload(refused=True)
            log.error("keys_not_reloaded", reason=str(error))
            return False
        self.keys = keys
        self._metrics.count_reload(refused=False)
        log.info("keys_reloaded", keys=len(keys))
        self._warn_of_readers()
        return True

    def _warn_of_readers(self) -> None:
        """Warns of a key file that every user of the machine can read or write."""
        path = self._settings.key_file
        if path is None:
            return
        mode = stat.S_IMODE(Path(path).stat().st_mode)
        if mode & stat.S_IRWXO:
            log.warning("key_file_exposed", file=path, mode=f"{mode:04o}", wanted="0600 or 0640")

    def _read_again(self) -> KeySet:
        keys = self._settings.read_keys()
        for role in Role:
            # Without a key of a role its routes could open; only a start may decide that.
            if self.keys.has(role) and not keys.has(role):
                raise SettingError(
                    KEY_FILE, f"{self._settings.key_file} has no {role} key any more"
                )
        return keys
