"""A trace: for each output position of each request, what every proposer would draft there.

A trace is counterfactual: at every position all proposers drafted, and their drafts were compared
with the tokens that the target wrote. So any policy can be replayed over it. With sampling the
comparison is with the tokens that were sampled in the recording.

The file is gzipped JSON. Counts are strings, one character for each position, `0` to `9` and `a`
to `z` for 10 to 35.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.simulation.costs import Costs, DraftCost, TargetCost
from engine_adapter.policies.contract import ProposerTraits, RequestClass

VERSION = 1
MAX_FILE_BYTES = 256 * 2**20
"""The largest file, unpacked."""

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

Counts = npt.NDArray[np.int8]


class TraceError(ValueError):
    """A file that is not a trace. The text has the file and the fault."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request.

    Attributes:
        label: what it is, as `quote` or `free`; policies do not see it.
        prompt_tokens: length of the prompt.
        arrival_s: when it arrives in an open loop; 0 in a closed one.
        drafted: int8 [L, J]. Entry [p, j]: the tokens that proposer j drafts with its whole k when
            the request has written p tokens. L is the length of the answer.
        accepted: int8 [L, J], how many of them the target then writes too.
    """

    label: str
    request_class: RequestClass
    prompt_tokens: int
    drafted: Counts = field(repr=False)
    accepted: Counts = field(repr=False)
    arrival_s: float = 0.0

    @property
    def output_tokens(self) -> int:
        """The length of the answer."""
        return len(self.drafted)


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests, the proposers that drafted for them, and what each of them costs.

    Attributes:
        proposers: J of them, in the order of the columns of `TracedRequest.drafted`.
    """

    target: str
    proposers: tuple[ProposerTraits, ...]
    costs: Costs
    requests: tuple[TracedRequest, ...]

    @property
    def max_k(self) -> int:
        """The longest draft of any proposer."""
        return max((traits.num_speculative_tokens for traits in self.proposers), default=0)


def save_trace(trace: Trace, path: Path) -> None:
    """Writes a trace."""
    document = {
        "version": VERSION,
        "target": trace.target,
        "proposers": [asdict(traits) for traits in trace.proposers],
        "costs": asdict(trace.costs),
        "requests": [
            {
                "label": request.label,
                "class": request.request_class.name.lower(),
                "prompt_tokens": request.prompt_tokens,
                "arrival_s": request.arrival_s,
                "drafted": _encode(request.drafted),
                "accepted": _encode(request.accepted),
            }
            for request in trace.requests
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a time stamp, so that equal traces are equal files.
    packed = gzip.compress(json.dumps(document).encode(), mtime=0)
    path.write_bytes(packed)


def load_trace(path: Path) -> Trace:
    """Reads a trace.

    Raises:
        TraceError: it is not one, or of another version.
        OSError: it cannot be read.
    """
    try:
        with gzip.open(path) as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise ValueError(f"more than {MAX_FILE_BYTES} bytes unpacked")
        document = json.loads(text)
        if document.get("version") != VERSION:
            raise ValueError(f"version {document.get('version')!r}; this Specgate reads {VERSION}")
        return _read(document)
    except (EOFError, gzip.BadGzipFile, KeyError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(f"{path} is not a trace: {error}") from error


def _read(document: Mapping[str, Any]) -> Trace:
    proposers = tuple(ProposerTraits(**fields) for fields in document["proposers"])
    costs = Costs(
        TargetCost(
            tuple((int(n), float(seconds)) for n, seconds in document["costs"]["target"]["points"]),
            float(document["costs"]["target"]["context_token_s"]),
            float(document["costs"]["target"]["prompt_token_s"]),
        ),
        {name: DraftCost(**fields) for name, fields in document["costs"]["drafts"].items()},
    )
    if missing := {traits.name for traits in proposers} - set(costs.drafts):
        raise ValueError(f"no costs of {', '.join(sorted(missing))}")
    requests = tuple(_read_request(fields, proposers) for fields in document["requests"])
    if not requests:
        raise ValueError("it has no requests")
    return Trace(str(document["target"]), proposers, costs, requests)


def _read_request(fields: Mapping[str, Any], proposers: Sequence[ProposerTraits]) -> TracedRequest:
    drafted, accepted = _decode(fields["drafted"]), _decode(fields["accepted"])
    if drafted.shape != accepted.shape or drafted.shape[1] != len(proposers):
        raise ValueError("a request's counts have different shapes")
    capacities = np.array([traits.num_speculative_tokens for traits in proposers])
    if not len(drafted) or (accepted > drafted).any() or (drafted > capacities).any():
        raise ValueError("a request's counts are impossible")
    kind = RequestClass[fields["class"].upper()]
    prompt_tokens, arrival_s = int(fields["prompt_tokens"]), float(fields["arrival_s"])
    if prompt_tokens < 1:
        raise ValueError(f"prompt_tokens must be at least 1, got {prompt_tokens}")
    return TracedRequest(str(fields["label"]), kind, prompt_tokens, drafted, accepted, arrival_s)


def _encode(counts: Counts) -> list[str]:
    """A string for each proposer."""
    return ["".join(_DIGITS[n] for n in column) for column in counts.T.tolist()]


def _decode(columns: Sequence[str]) -> Counts:
    return np.array([[_DIGITS.index(c) for c in column] for column in columns], np.int8).T
