"""One step of a replica of several ranks as a table: the busiest rank and micro-batch."""

from __future__ import annotations

from costmodels.evidence import weakest
from costmodels.explain import OperatorRow
from costmodels.group_cost import GroupStepCost
from costmodels.roofline import OperatorSeconds
from costmodels.step_table import BOUNDS, DECODE_ACCOUNT, StepRow, step_row, step_rows
from sim import accounts
from sim.shape import StepShape


def group_rows(cost: GroupStepCost, shape: StepShape) -> list[StepRow]:
    """All layers on the busiest rank for one of its micro-batches, the experts it shares included.

    Of a pipeline: what one micro-batch takes from the first stage to the last.
    """
    dealt = cost.deal(shape)
    rows = step_rows(cost.rank, dealt.shape._replace(logits=dealt.logits))
    labels = cost.evidence()
    shared = zip(cost.group, cost.describe_group(dealt.mean_tokens), strict=True)
    is_decode = not dealt.shape.prefill_tokens
    rows += [_row(priced, row, labels, is_decode) for priced, row in shared]
    total_s = sum(row.seconds for row in rows)
    return [row._replace(share=row.seconds / total_s if total_s else 0.0) for row in rows]


def _row(
    priced: OperatorSeconds, row: OperatorRow, labels: dict[str, str], is_decode: bool
) -> StepRow:
    operator = priced.operator
    bound = BOUNDS.get(row.bound, row.bound)
    account = accounts.COMMUNICATION if operator.exchange else DECODE_ACCOUNT[operator.kind]
    if not is_decode and not operator.exchange:
        is_compute = bound == "compute"
        account = accounts.PREFILL_COMPUTE if is_compute else accounts.PREFILL_MEMORY
    return step_row(
        row,
        share=0.0,
        bound=bound,
        peak=operator.peak,
        accounts=(account,),
        evidence=weakest((labels[account], "extrapolated")),
        constants=(),
    )
