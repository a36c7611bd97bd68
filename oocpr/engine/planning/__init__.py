"""Plans of runs on this machine: `oocpr.plan` with sizes of stores and what is free here."""
