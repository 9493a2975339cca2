//! PostgreSQL protocol v3: header peek, typed messages, encoders, errors with SQLSTATE
