"""Plans of runs on several devices, with as many tiles on each as a test wants."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from oocpr.engine.planning import plan_request

from ..engine.running import in_groups, plan_for_groups

if TYPE_CHECKING:
    from oocpr.engine.settings import Settings
    from oocpr.engine.tiles.groups import GroupedStore
    from oocpr.plan.plan import Plan
    from oocpr.store.graph import GraphStore

PLENTY = 2**33


def least_memory(staying: Callable[[int], int], tiles: int, from_: int) -> int:
    """Least bytes of a device, from so many on, within which so many tiles stay."""
    return from_ + bisect_left(range(PLENTY), tiles, key=lambda more: staying(from_ + more))


def plan_for(
    store: GraphStore,
    chosen: Settings,
    devices: int,
    on_each: int | Sequence[int],
    *,
    pinned: bool,
    stripes: tuple[tuple[int, int], ...] | None = None,
    each: int = 1,
) -> tuple[Plan, GroupedStore]:
    """A plan in which so many groups stay on each device, and all others in pinned memory or none.

    Returns the graph in its groups of `each` tiles, too; `stripes` are of tiles.
    """
    staying = [on_each] * devices if isinstance(on_each, int) else list(on_each)
    tiles, groups = in_groups(store, each, stripes or devices)

    def planned(given: list[int], memory: int) -> Plan:
        request = plan_request(chosen, memory=memory, device_memory=tuple(given))
        return plan_for_groups(store, tiles, request, groups, all_resident=False)

    def given_to(number: int) -> int:
        def stay(memory: int) -> int:
            return planned([memory] * devices, PLENTY).devices[number].on_device

        return least_memory(stay, staying[number], most.devices[number].need.total)

    most = planned([PLENTY] * devices, PLENTY)
    given = [given_to(number) for number in range(devices)]
    plan = planned(given, PLENTY if pinned else most.need.total)
    assert plan.fits
    assert [tiers.on_device for tiers in plan.devices] == staying
    assert plan.cached_tiles == (plan.stats.tiles if pinned else sum(staying))
    return plan, tiles
