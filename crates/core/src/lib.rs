//! The pooler as a deterministic machine: clients, servers, pools, ledger, console, timers
