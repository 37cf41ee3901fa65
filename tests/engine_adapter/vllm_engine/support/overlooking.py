"""Spoils the rule of which draft KV is valid, in the process that calls it."""

from typing import Any

from engine_adapter.vllm_engine.worker.drafting.kv_groups import DraftKVGroups, GroupBlocks

_RULE = DraftKVGroups.first_missing


def overlook_a_block() -> None:
    """From now on the first block whose KV is missing is taken for valid."""

    def first_missing(self: Any, blocks: GroupBlocks, lengths: Any) -> Any:
        size = min(ledger.block_size for ledger in self.ledgers.values())
        return (_RULE(self, blocks, lengths) + size).clip(max=lengths)

    DraftKVGroups.first_missing = first_missing  # type: ignore[method-assign]


def overlook_nothing() -> None:
    """The rule is the engine's own again."""
    DraftKVGroups.first_missing = _RULE  # type: ignore[method-assign]
