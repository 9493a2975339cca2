SELECT 'i', reset_val, NULL FROM pg_catalog.pg_settings WHERE name = 'default_transaction_isolation'
