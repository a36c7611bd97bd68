"""The command line as ``python -m oocpr``."""

from oocpr.cli import run_process

if __name__ == "__main__":
    run_process()
