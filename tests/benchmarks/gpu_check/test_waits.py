"""Where a step waits, from what vLLM's check prints."""

from benchmarks.gpu_check.waits import waits_in

WAITED = "UserWarning: called a synchronizing CUDA operation (Triggered internally at Copy.cu:1)"


def test_each_place_is_counted_and_the_most_frequent_is_first() -> None:
    lines = [
        f"/opt/lib/site-packages/vllm/v1/sample/sampler.py:12: {WAITED}",
        "  tokens = logits.argmax().item()",
        f"(EngineCore pid=7) /src/engine_adapter/vllm_engine/worker/runner.py:40: {WAITED}",
        f"/src/engine_adapter/vllm_engine/worker/runner.py:40: {WAITED}",
        "/a/b.py:3: UserWarning: Tensor.to: a non_blocking H2D copy that may be silently "
        "synchronous (the CPU tensor is not pinned). Copy from pinned memory.",
        "/a/b.py:4: UserWarning: something else",
        "INFO 10:00 [x.py:1] ready",
    ]
    assert waits_in(lines) == [
        {
            "where": "engine_adapter/vllm_engine/worker/runner.py:40",
            "what": "waits",
            "times": 2,
        },
        {"where": "vllm/v1/sample/sampler.py:12", "what": "waits", "times": 1},
        {"where": "/a/b.py:3", "what": "copy that may wait", "times": 1},
    ]


def test_a_log_without_waits_has_no_rows() -> None:
    assert waits_in(["INFO ready", ""]) == []
