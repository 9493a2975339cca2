"""What the tests stand on: throw-away PostgreSQL clusters, the pooler under test, and a client that speaks raw bytes.

Nothing in here asserts anything about the pooler except that it is alive and has not crashed; that is the tests' work.
"""
