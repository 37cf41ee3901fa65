"""`specgate export`: the methods, policies, rules and loads of a running server, as settings."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from engine_adapter.policies.parameters import PolicyError
from engine_adapter.seam.types import ProposerInfo
from server.commands import FAILED, print_error
from server.commands.admin_client import AdminClient, AdminClientError, Parser
from server.control.admin.policy_reader import with_defaults
from server.control.method_names import LoadedProposers


def export(argv: Sequence[str], transport: httpx.BaseTransport | None = None) -> int:
    """Writes the settings. Returns the process's exit status."""
    parser = Parser(
        "specgate export",
        "Writes the methods, policies, rules and loads of a running server as settings: "
        "`specgate serve --config FILE` starts with them.",
    )
    parser.add_argument("--out", metavar="FILE", help="for the settings (default: standard output)")
    parser.add_connection()
    options = parser.parse_args(argv)
    try:
        with AdminClient(options.url, options.admin_key, transport) as client:
            settings, notes = exported(client)
        _write(settings, options.out)
    except AdminClientError as error:
        print_error(str(error))
        return FAILED
    except OSError as error:
        print_error(f"--out: cannot write {options.out}: {error.strerror}")
        return FAILED
    for note in notes:
        print(f"specgate: {note}", file=sys.stderr)
    return 0


def exported(client: AdminClient) -> tuple[dict[str, Any], list[str]]:
    """The settings of a server's present state, and what of it no setting can say.

    Raises `AdminClientError`.
    """
    method = client.get("/v1/spec_method")
    proposers = client.get("/v1/proposers")["data"]
    policy = client.get("/v1/spec_policy")
    adapters = {
        model["id"]: model["root"]
        for model in client.get("/v1/models")["data"]
        if model["parent"] is not None
    }
    loaded = [info for info in proposers if info["state"] != "loading"]
    settings: dict[str, Any] = {"proposer": [info["settings"] for info in loaded]}
    settings |= {role: info["name"] for info in loaded for role in info["roles"]}
    settings["spec_method"] = method["spec_method"]
    if policies := _changed_policies(policy["policies"], _as_loaded(loaded)):
        settings["spec_policy"] = policies
    if policy["rules"]:
        settings["routing_rules"] = [
            {name: rule[name] for name in ("name", "match", "use")} for rule in policy["rules"]
        ]
    if adapters:
        settings |= {"enable_lora": True, "lora_modules": adapters}
    return settings, _notes(method, loaded)


def _as_loaded(infos: Sequence[dict[str, Any]]) -> LoadedProposers:
    """The proposers of the API as a server has them."""
    by_role = {role: info["name"] for info in infos for role in info["roles"]}
    return LoadedProposers(
        tuple(
            ProposerInfo(i["name"], i["method"], i["model"], i["num_speculative_tokens"])
            for i in infos
        ),
        by_role.get("primary"),
        by_role.get("backup"),
    )


def _changed_policies(
    policies: Sequence[dict[str, Any]], loaded: LoadedProposers
) -> dict[str, dict[str, Any]]:
    """Policy -> the parameters that differ from a start's, where any does."""
    changed: dict[str, dict[str, Any]] = {}
    for policy in policies:
        try:
            defaults = with_defaults(policy["name"], {}, loaded)
        except PolicyError:
            # A parameter without a default.
            defaults = {}
        parameters = {
            name: value
            for name, value in policy["parameters"].items()
            if name not in defaults or defaults[name] != value
        }
        if parameters:
            changed[policy["name"]] = parameters
    return changed


def _notes(method: dict[str, Any], loaded: Sequence[dict[str, Any]]) -> list[str]:
    """The number of drafts of a switch, and a quarantine: a server that starts has neither."""
    notes = []
    name, k = method["spec_method"], method["num_speculative_tokens"]
    own_k = {info["name"]: info["num_speculative_tokens"] for info in loaded}
    if name in own_k and k != own_k[name]:
        notes.append(
            f"no setting says that {name} drafts {k} tokens now, not {own_k[name]}; "
            f"after the start: specgate switch {name} --k {k}"
        )
    for info in loaded:
        if info["state"] == "quarantined":
            notes.append(
                f"{info['name']} is quarantined, and will be tried again by the next start"
            )
    return notes


def _write(settings: dict[str, Any], path: str | None) -> None:
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    if path is not None:
        Path(path).write_text(text, "utf-8")
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe. Python flushes at exit, and that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
