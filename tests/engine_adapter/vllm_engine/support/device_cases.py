"""The cases of the steps on the pretend device; imports no vLLM."""

from collections.abc import Mapping
from typing import Any

from engine_adapter.seam.types import NONE
from tests.engine_adapter.vllm_engine.support.pretend_device import (
    DOWNLOAD,
    EVENT,
    QUEUED_DOWNLOAD,
    UPLOAD,
)

K = 4

PROPOSERS: dict[str, dict[str, Any]] = {
    "ngram": {"prompt_lookup_min": 1},
    "suffix": {},
    "draft_model": {"model": "toy/1"},
    "eagle": {"model": "toy/5"},
    "eagle3": {"model": "toy/6/0,4"},
    "mtp": {},
    "dflash": {"model": "toy/8/1,3"},
    "dflash2": {"method": "dflash", "model": "toy/8/1,3/candidates"},
    "dspark": {"model": "toy/9/1,3"},
    "medusa": {},
    "mlp_speculator": {},
}
"""Method, or kind of head -> its settings, apart from checkpoints that are written to disk."""

GREEDY, SAMPLED, SEEDED, LIMITED = "greedy", "sampled", "seeded", "limited"
"""What the rows ask for; `limited` is greedy with a penalty, a bias and a minimum length."""

GATED = "gated"
"""Greedy rows of a proposer with `min_confidence`."""

UNKEPT = "unkept"
"""Greedy rows of a head for which the target's states are not kept."""

HEADS = ("eagle", "eagle3", "mtp", "dflash", "dflash2", "dspark")
"""Methods with the option `keep_states`."""

DRAWING = (
    *("draft_model", "eagle", "eagle3", "mtp"),
    *("dflash", "dflash2", "dspark", "medusa", "mlp_speculator"),
)
"""Methods that draw their drafts."""

EARLY = ("draft_model", "eagle", "eagle3", "mtp")
"""Methods that draft before the tokens of a late step are read."""

LOOKUPS = ("ngram", "suffix")
"""Methods without a model. Their drafts are verified by exact match."""

_UPLOADS = {
    "draft_model": 2,
    "eagle": 2,
    "eagle3": 2,
    "mtp": 2,
    "dflash": 3,
    "dflash2": 4,
    "dspark": 4,
    "medusa": 1,
    "mlp_speculator": 2,
}
"""Method -> uploads of a greedy step.

They are the inputs of the first pass and of all later ones (a head of Medusa: where the target's
states are; an MLP speculator: the newest tokens too; DFlash2 and DSpark: the rows of each depth).
"""


def budget(method: str, asks: str, *, late: bool = False) -> Mapping[str, int]:
    """What a step may do: kind -> how often. A kind that is not named, never.

    The emitted tokens and their counts are on their way to the host while the device works, and
    their event is waited for once. Without a proposer, a late step does not wait for it.

    A model's drafts are on their way, too. A step that is not late hands them to the scheduler, and
    waits for their event. If they are sampled, it is on its way whether their
    distributions are valid, and the rows' options are uploaded once; for rows with a seed the seeds
    too, before each draft; for rows without, the drafts that are verified by their distributions.
    With options that depend on the drafts before, three arrays are uploaded before each draft. A
    gate is told once which rows draft, and says at the end how long the drafts are.

    A lookup on the device, which a late step of `ngram` has, waits for nothing and uploads nothing:
    which rows have a match is on its way too.

    Early drafts, which a late step of a draft model or a head has for greedy rows, upload where the
    emitted tokens are.
    """
    allowed = {QUEUED_DOWNLOAD: 2}
    if late and method == "ngram":
        return {QUEUED_DOWNLOAD: 3}
    if method != NONE or not late:
        allowed[EVENT] = 1
    if method == NONE:
        return allowed
    if method in LOOKUPS:
        return allowed | {UPLOAD: 1}
    more = {GREEDY: 0, UNKEPT: 0, GATED: 1, SEEDED: 1 + K, SAMPLED: 2, LIMITED: 3 * K}[asks]
    if method == "dflash" and asks not in (GREEDY, UNKEPT):
        more += 1  # the rows of each depth, which its one pass has together
    if late and asks == GREEDY and method in EARLY:
        more += 1
    allowed |= {UPLOAD: _UPLOADS[method] + more, QUEUED_DOWNLOAD: 3}
    if not late:
        allowed[EVENT] = 2
    if asks in (SAMPLED, SEEDED):
        allowed[QUEUED_DOWNLOAD] += 1
    if asks == GATED:
        allowed[DOWNLOAD] = 1
    return allowed
