"""Plans of runs on several devices, with as many tiles on each as a test wants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oocpr.api.choices import facts_of
from oocpr.plan.on_devices import plan_on_devices
from oocpr.plan.tiling import stripe_tiles

from ..engine.running import asked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oocpr.engine.settings import Settings
    from oocpr.plan.plan import Plan
    from oocpr.store.graph import GraphStore

PLENTY = 2**33


def plan_for(
    store: GraphStore,
    chosen: Settings,
    devices: int,
    on_each: int | Sequence[int],
    *,
    pinned: bool,
    stripes: tuple[tuple[int, int], ...] | None = None,
) -> Plan:
    """A plan in which so many tiles stay on each device, and all others in pinned memory or none."""
    staying = [on_each] * devices if isinstance(on_each, int) else list(on_each)

    def planned(given: list[int], memory: int) -> Plan:
        return plan_on_devices(
            facts_of(store),
            store.tile_rows,
            stripes or stripe_tiles(store.tiles, devices),
            given,
            memory=memory,
            base=0,
            stays=False,
            **asked(chosen),
        )

    most = planned([PLENTY] * devices, PLENTY)
    given = [
        tiers.need.total + count * (tiers.kept_bytes // tiers.on_device)
        for tiers, count in zip(most.devices, staying, strict=True)
    ]
    plan = planned(given, PLENTY if pinned else most.need.total)
    assert plan.fits
    assert [tiers.on_device for tiers in plan.devices] == staying
    assert plan.cached_tiles == (store.tiles if pinned else sum(staying))
    return plan
