"""`fixed`: every row is drafted for by what it was given, as far as there is room."""

from dataclasses import replace

from engine_adapter.policies.contract import StepPlan, StepView


class FixedPolicy:
    """Follows each request's own method; decides nothing itself."""

    def plan(self, view: StepView) -> StepPlan:
        """Each row's method, its k cut to the row's room."""
        return {
            row.request_id: row.spec_method
            if row.spec_method.num_speculative_tokens <= row.room
            else replace(row.spec_method, num_speculative_tokens=row.room)
            for row in view.rows
        }
