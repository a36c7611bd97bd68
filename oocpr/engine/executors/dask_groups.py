"""Workers that send each other their pushes from device to device: tasks beside those of `tasks`.

Nothing of a push passes through Dask then; what is published are its sums.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from oocpr.engine import stripe_tasks
from oocpr.engine.cuda.communication import new_unique_id
from oocpr.engine.gather_vector import forget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oocpr.engine.cuda.communication import Communicator
    from oocpr.engine.job import Job
    from oocpr.engine.method import State
    from oocpr.engine.stripe import Stripe

_LOG = logging.getLogger(__name__)

_groups: dict[tuple[str, int], Communicator] = {}


def group_key() -> Any:
    """See `new_unique_id`."""
    return new_unique_id()


def join_group(job: Job, stripe: Stripe, key: Any, index: int, size: int) -> bool:
    """Take a stripe's place among so many; tells whether what they send each other arrives as it was."""
    try:
        group = _groups[job.token, index] = stripe.backend.join_group(key, index, size)  # type: ignore[attr-defined]
        return bool(group.works())
    except RuntimeError as error:
        # NCCL's own class, and CUDA's, are known where they are loaded only.
        _LOG.warning("the devices of the workers do not reach each other: %s", error)
        return False


def publish(job: Job, stripe: Stripe, state: State, index: int) -> stripe_tasks.StripePush:
    """Make a stripe's next push, which stays on its device until all others come for it."""
    published = stripe_tasks.publish(job, stripe, state, index)
    stripe.pushed = published.stored
    return stripe_tasks.StripePush(published.row_begin, None, published.sums)


def sweep(
    job: Job, stripe: Stripe, state: State, published: Sequence[stripe_tasks.StripePush], index: int
) -> stripe_tasks.StripeReport:
    """Gather what all have pushed, and sweep a stripe's tiles once."""
    begins = [*(part.row_begin for part in published), stripe.spec.nodes]
    pieces = _groups[job.token, index].gather(stripe.pushed, begins)
    return stripe_tasks.sweep_with(job, stripe, state, published, pieces)


def leave(token: str) -> None:
    """Free what this process has of a run; who still waits for others in it does so no longer."""
    for key in [key for key in _groups if key[0] == token]:
        _groups.pop(key).abort()
    forget(token)
