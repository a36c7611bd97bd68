"""Power iteration that reads more of each number with time: CPMS (Gruetzmacher et al. 2018)."""
