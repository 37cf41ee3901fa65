"""`fixed`: every row gets drafts by its own method, as far as its draft budget allows."""

from dataclasses import replace

from engine_adapter.policies.contract import StepPlan, StepView


class FixedPolicy:
    """Follows each request's own method; decides nothing itself."""

    def plan(self, view: StepView) -> StepPlan:
        """Each row's method, with k reduced to the row's draft budget."""
        return StepPlan(
            {
                row.request_id: row.spec_method
                if row.spec_method.num_speculative_tokens <= row.draft_budget
                else replace(row.spec_method, num_speculative_tokens=row.draft_budget)
                for row in view.rows
            }
        )
