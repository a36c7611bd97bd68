"""64-bit ids and names mapped to dense node numbers, outside memory."""
