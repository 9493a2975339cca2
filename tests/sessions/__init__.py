"""The session fuzzer: random sessions of several clients, each played directly and through the pooler, answers compared."""
