"""The rules, one family a file. Each file: small pure functions, then the rows."""
