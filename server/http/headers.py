"""The headers of requests and responses besides HTTP's own."""

from collections.abc import Mapping

REQUEST_ID = "x-request-id"
ANTHROPIC_REQUEST_ID = "request-id"
"""The same id, where Anthropic's clients look for it."""

TRACE_ID = "x-trace-id"
SPEC_METHOD = "x-specgate-spec-method"
DRAFT_TOKENS = "x-specgate-draft-tokens"
ACCEPTED_DRAFT_TOKENS = "x-specgate-accepted-draft-tokens"
IGNORED_FIELDS = "x-specgate-ignored-fields"
UNENFORCED_KEYWORDS = "x-specgate-unenforced-keywords"
RETRY_AFTER = "Retry-After"

PROPOSER = "x-specgate-proposer"
NUM_SPECULATIVE_TOKENS = "x-specgate-num-speculative-tokens"
"""This and `PROPOSER` are headers of a request, and mean what fields of `spec_decode` mean."""

RESPONSE_HEADERS: Mapping[str, str] = {
    REQUEST_ID: "the request's id, which the server's log has too",
    ANTHROPIC_REQUEST_ID: "the same id, of `/v1/messages`",
    TRACE_ID: "the request's trace, if the server sends traces, which the server's log has too",
    SPEC_METHOD: "the method chosen at admission: a proposer, a policy, or none",
    DRAFT_TOKENS: "drafted tokens of an answer in one piece, all choices together",
    ACCEPTED_DRAFT_TOKENS: "those of them that were accepted",
    IGNORED_FIELDS: "unknown fields of the body, percent-encoded, separated by commas",
    UNENFORCED_KEYWORDS: "keywords of the JSON schema that are not enforced, separated by commas",
    RETRY_AFTER: "seconds until a retry can help; absent if it cannot",
}
"""Name -> meaning. Pages of other origins may read them, and the OpenAPI document has them."""
