"""The terminal output of a start: the stages of loading, then how to use the server."""

import json
import os
import sys
import time

import structlog
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from engine_adapter.policies.names import policy_name
from engine_adapter.seam.types import NONE, EngineInfo
from server import __version__
from server.console import pages
from server.http.direct import is_loopback
from server.settings import Settings
from server.settings.keys import KeySet, Role

log = structlog.get_logger(__name__)


class StartupDisplay:
    """Shows stages and the banner on standard output, or as log lines with `log_json`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys = settings.keys_at_start
        self._start_s = time.monotonic()
        # Long paths and curl lines are not wrapped here: a terminal wraps them itself.
        self._console = Console(width=1000, soft_wrap=True, highlight=False)
        self._live: Live | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start_s

    def stage(self, text: str) -> None:
        """Shows that a stage begins; a terminal also shows its duration."""
        if self._settings.log_json:
            log.info("loading", stage=text, elapsed_s=round(self.elapsed_s, 1))
            return
        self.close()
        self._print(f"[{self.elapsed_s:6.1f} s] {text}")
        if self._console.is_terminal:
            self._live = Live(console=self._console, transient=True, get_renderable=self._waiting)
            self._live.start()

    def ready(self, info: EngineInfo, port: int) -> None:
        """Shows the address, the proposers, and a command each to complete and to switch."""
        url = _url(self._settings, port)
        if self._settings.log_json:
            log.info("ready", url=url, spec_method=self._settings.spec_method, model=info.model)
            return
        self.close()
        name = self._settings.served_model_name[0]
        self._print(f"\nSpecgate {__version__} serves {name} on {url}")
        self._print(f"ready after {self.elapsed_s:.1f} s with {info.engine} {info.version}")
        if self._settings.console and pages.installed():
            self._print(f"console: {url}{pages.PATH}")
        self._print("")
        self._print(_proposers(info, self._settings))
        self._print(f"\nComplete:\n{_completion(url, self._settings, self._keys)}")
        self._print(f"\nSwitch:\n{_switch(url, info, self._settings, self._keys)}\n")

    def close(self) -> None:
        """Removes the spinner. Safe to call twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, what: str | Table) -> None:
        """Prints, unless it cannot: a full disk must not end the server."""
        try:
            self._console.print(what, markup=False)
            sys.stdout.flush()
        except OSError as error:
            log.warning("output_failed", error=str(error))
            # What is still buffered would fail again, at the latest when the process ends.
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())

    def _waiting(self) -> Spinner:
        return Spinner("dots", f"{self.elapsed_s:.0f} s")


def _url(settings: Settings, port: int) -> str:
    """An address that can be pasted; wildcard hosts are shown as loopback."""
    scheme = "http" if settings.ssl_certfile is None else "https"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _proposers(info: EngineInfo, settings: Settings) -> Table:
    """The proposers; the active one is marked with a star."""
    active = settings.initial_proposer
    table = Table("active", "proposer", "method", "k", "role", "model", box=None, pad_edge=False)
    for p in info.proposers:
        roles = [r for r in ("primary", "backup") if getattr(settings, r) == p.name]
        star = "*" if p.name == active else ""
        k = str(p.num_speculative_tokens)
        table.add_row(star, p.name, p.method, k, ", ".join(roles), p.model or "")
    if policy_name(active) is not None:
        table.add_row("*", active, "policy: chooses among them at every step", "", "", "")
    table.add_row("*" if active == NONE else "", NONE, "plain decoding", "", "", "")
    return table


def _completion(url: str, settings: Settings, keys: KeySet) -> str:
    body: dict[str, object] = {
        "model": settings.served_model_name[0],
        "prompt": "def fibonacci(n):",
    }
    body["max_tokens"] = 64
    key = "SPECGATE_API_KEY" if keys.has(Role.API) else None
    return _curl(f"{url}/v1/completions", body, key)


def _switch(url: str, info: EngineInfo, settings: Settings, keys: KeySet) -> str:
    if not keys.has(Role.ADMIN) and (len(keys) or not is_loopback(settings.host)):
        return "no admin key is set, so the server cannot be switched: see --admin-key"
    other_names = [p.name for p in info.proposers if p.name != settings.initial_proposer]
    body: dict[str, object] = {"speculative_model": other_names[0] if other_names else NONE}
    key = "SPECGATE_ADMIN_KEY" if keys.has(Role.ADMIN) else None
    return _curl(f"{url}/v1/switch_spec_method", body, key)


def _curl(url: str, body: dict[str, object], key_variable: str | None) -> str:
    key = f' -H "Authorization: Bearer ${key_variable}"' if key_variable else ""
    # Escaped in JSON, so that it does not end the quoted text of the shell.
    text = json.dumps(body).replace("'", "\\u0027")
    return f"curl {url}{key} -H 'Content-Type: application/json' -d '{text}'"
