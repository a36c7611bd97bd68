"""From a store and a plan to a ranked solution."""
