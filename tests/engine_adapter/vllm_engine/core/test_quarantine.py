"""When a proposer is quarantined, and when it is called again."""

from engine_adapter.vllm_engine.core.quarantine import MAX_FAULTS, WINDOW_S, Quarantine


def test_faults_in_quick_succession_quarantine_their_proposer() -> None:
    quarantine = Quarantine()
    for i in range(MAX_FAULTS - 1):
        assert quarantine.record_faults({"bad": "x"}, now_s=float(i)) == []
        assert quarantine.names == set()
    assert quarantine.record_faults({"bad": "x", "other": "y"}, now_s=10.0) == ["bad"]
    assert quarantine.names == {"bad"}


def test_rare_faults_do_not_quarantine() -> None:
    quarantine = Quarantine()
    apart = WINDOW_S / (MAX_FAULTS - 1) + 0.1
    for i in range(50):
        assert quarantine.record_faults({"bad": "x"}, now_s=i * apart) == []
    assert quarantine.names == set()


def test_clearing_its_faults_ends_a_proposers_quarantine() -> None:
    quarantine = Quarantine()
    for i in range(MAX_FAULTS):
        quarantine.record_faults({"bad": "x", "worse": "x"}, now_s=float(i))
    quarantine.clear_faults("bad")
    quarantine.clear_faults("unknown")
    assert quarantine.names == {"worse"}
    assert quarantine.record_faults({"bad": "x"}, now_s=5.0) == []


def test_faults_of_steps_that_were_scheduled_before_are_no_second_quarantine() -> None:
    quarantine = Quarantine()
    named = [quarantine.record_faults({"bad": "broken"}, 1.0) for _ in range(MAX_FAULTS + 2)]
    assert [names for names in named if names] == [["bad"]]
