"""The order of a batch of vLLM's model runner V2 under which recurrent states are found.

vLLM's recurrent layers take all rows from the first one that reads a prompt for rows that read one,
and such a row begins at the state that a prompt leaves. vLLM puts a row without drafts and with as
many tokens as a row with all drafts has, a short prompt, before the rows that read one token: these
would begin at a state before their last accepted tokens. On a GPU too.
"""

from collections.abc import Mapping, Sequence

from engine_adapter.vllm_engine import compat


def patch_batch_order() -> None:
    """Orders the rows of model runner V2 in this process with `rows_in_order`."""
    compat.v2_model_runner.sort_batch_req_ids = rows_in_order


def rows_in_order(
    num_tokens_per_req: Mapping[str, int],
    draft_tokens: Mapping[str, Sequence[int]],
    decode_query_len: int,
) -> list[str]:
    """The requests of a step in the order of its batch, with vLLM's parameters.

    Rows with drafts come first, of these the ones with all drafts; then rows by their tokens.

    Args:
        num_tokens_per_req: request id -> the tokens that it reads.
        draft_tokens: request id -> its drafts, which are the last of these tokens.
        decode_query_len: the tokens of a row with all drafts.
    """

    def place(request_id: str) -> tuple[bool, bool, int]:
        number, drafts = num_tokens_per_req[request_id], bool(draft_tokens.get(request_id))
        return not drafts, drafts and number != decode_query_len, number

    return sorted(num_tokens_per_req, key=place)
