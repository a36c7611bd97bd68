import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.ingest.order.cost import MISS_BYTES, OrderCost, choose, explain

costs_of_orders = st.builds(OrderCost, st.integers(1, 2**21), st.integers(0, 2**23), st.integers(0, 2**21))


@pytest.mark.parametrize(
    ("keep", "degree", "chosen"),
    [
        ((1000, 1990, 620), (1000, 1490, 290), "degree"),  # R-MAT
        ((1000, 470, 4), (1000, 740, 0), "keep"),  # a crawl
        ((1000, 800, 0), (1000, 701, 0), "keep"),  # less than an eighth
        ((1000, 800, 0), (1000, 700, 0), "degree"),
        ((1000, 800, 0), (500, 350, 0), "degree"),  # samples of two sizes
        ((1000, 800, 0), (500, 351, 0), "keep"),
        ((1000, 1000, 0), (1000, 0, 1000), "keep"),  # bytes saved, gathers lost
        ((0, 64, 0), (0, 64, 0), "keep"),
        ((5, 0, 0), (5, 0, 0), "keep"),
    ],
)
def test_the_choice(keep, degree, chosen):
    assert choose({"keep": OrderCost(*keep), "degree": OrderCost(*degree)}) == chosen


@given(st.dictionaries(st.sampled_from("abcde"), costs_of_orders), costs_of_orders)
def test_the_choice_is_the_least_cost_of_those_that_save_an_eighth(others, keep):
    def cost(one):
        return (one.stored + MISS_BYTES * one.missed) / one.edges

    costs = {name: cost(one) for name, one in others.items() if cost(one) <= 7 / 8 * cost(keep)}
    name = choose({"keep": keep, **others})
    if costs:
        assert (keep if name == "keep" else others[name]).cost / (
            keep if name == "keep" else others[name]
        ).edges == pytest.approx(min(costs.values()), rel=1e-9)
    else:
        assert name == "keep"


def test_the_reason_names_what_was_given_up():
    keep, degree = OrderCost(100, 170, 0), OrderCost(100, 140, 0)
    assert explain("degree", {"keep": keep, "degree": degree}) == (
        "order: by out-degree, 1.40 instead of 1.70 B/edge and 100 % of gathers in cache"
    )
    assert explain("keep", {"keep": keep}) == (
        "order: as in the source, 1.70 B/edge and 100 % of gathers in cache"
    )
