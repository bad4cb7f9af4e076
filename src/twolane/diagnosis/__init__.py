"""Known mistakes: found before start-up and in the logs afterwards.

`preflight.check` judges a Deployment, `postmortem.diagnose` logs and figures; `commands` wraps
both for the command line. The rules are rows in `rules/`, one family a file; `rule.py` says what a
row is, `catalogue.py` gathers them, `handbook.py` prints them.
"""
