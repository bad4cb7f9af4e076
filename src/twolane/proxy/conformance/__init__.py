"""The fault table that any prefill/decode router can be put before.

table    rows as data: the fault, what a client must see, what the engines must end with
scene    the ways of asking: once, leaving in the middle, many at once, raw bytes, a restart
stage    fault engines, and the router's process in front of them
judge    what was seen against what must be seen
play     the table from top to bottom
"""
